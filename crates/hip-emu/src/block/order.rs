//! The order in which the threads of a block are run.

use super::Runner;
use crate::settings::Order;

impl Runner {
    /// Puts the threads in the order in which they are run: whole waves, and lanes within a wave.
    pub(super) fn order_threads(&mut self, order: Order) {
        let mut waves: Vec<usize> = (0..self.waves.len()).collect();
        if order == Order::Random {
            shuffle(&mut waves, &mut self.seed);
        }
        self.order.clear();
        for wave in waves {
            let wave = &self.waves[wave];
            let from = self.order.len();
            self.order.extend(wave.first..wave.first + wave.len);
            if order == Order::Random {
                shuffle(&mut self.order[from..], &mut self.seed);
            }
        }
        if order == Order::Reverse {
            self.order.reverse();
        }
    }
}

/// A permutation by a linear congruential generator, the same for the same seed.
fn shuffle(list: &mut [usize], seed: &mut u64) {
    for i in (1..list.len()).rev() {
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        list.swap(i, (*seed >> 33) as usize % (i + 1));
    }
}
