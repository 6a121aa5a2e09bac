//! Softmax attention over page tables.

use half::{bf16, f16};
use portolan_device::{DType, cpu::Team};

use super::{
    cache::{Element, Pages},
    dot::dot,
};
use crate::{
    CacheKind, Launch, Op, PAGE_TOKENS, StepShape,
    cpu::access::{output, read, values, with_scratch},
};

/// The plain attention: every score of a row and head, their softmax, then the weighted sum of the values.
pub(super) fn attention(launch: &Launch, shape: StepShape, team: &Team) {
    match launch.cache.as_ref().map(|c| c.dtype) {
        Some(DType::F32) => of::<f32>(launch, shape, team),
        Some(DType::F16) => of::<f16>(launch, shape, team),
        Some(DType::BF16) => of::<bf16>(launch, shape, team),
        _ => {}
    }
}

fn of<E: Element>(launch: &Launch, shape: StepShape, team: &Team) {
    let Op::Attention { heads, scale, window } = launch.op else { return };
    let Some(cache) = &launch.cache else { return };
    let CacheKind::Paged { kv_heads, k_dim, v_dim, .. } = cache.kind else { return };
    let q = values(&launch.inputs[0], shape);
    let y = output::<f32>(&launch.outputs[0], shape);
    let positions: &[i32] = read(&launch.step.positions, shape.rows);
    let row_seq: &[i32] = read(&launch.step.row_seq, shape.rows);
    let pages = Pages::new(launch, cache, kv_heads, shape);
    let memory_rows = cache.pages * kv_heads * PAGE_TOKENS;
    let (keys, values) = (read::<E>(&cache.k, memory_rows * k_dim), read::<E>(&cache.v, memory_rows * v_dim));
    team.run(shape.rows * heads, |chunk| {
        let (row, head) = (chunk / heads, chunk % heads);
        let q = &q[chunk * k_dim..(chunk + 1) * k_dim];
        // SAFETY: this head of this row belongs to this chunk alone.
        let y = unsafe { y.part_mut(row, head * v_dim, v_dim) };
        let Some(position) = pages.position(positions[row]) else {
            y.fill(f32::NAN);
            return;
        };
        let first = window.map_or(0, |w| (position + 1).saturating_sub(w));
        let kv_head = head / (heads / kv_heads);
        // Calls `f` with each position that the row sees, counted from the first, and its row in memory.
        let each = |f: &mut dyn FnMut(usize, usize)| {
            for index in first / PAGE_TOKENS..=position / PAGE_TOKENS {
                let start = pages.first_row(row_seq[row], index, kv_head)?;
                let from = first.max(index * PAGE_TOKENS);
                for p in from..=position.min(index * PAGE_TOKENS + PAGE_TOKENS - 1) {
                    f(p - first, start + p % PAGE_TOKENS);
                }
            }
            Some(())
        };
        let count = position + 1 - first;
        with_scratch(count + k_dim.max(v_dim), |scratch| {
            let (scores, buffer) = scratch.split_at_mut(count);
            let scored = each(&mut |i, at| {
                let key = E::load(&keys[at * k_dim..(at + 1) * k_dim], &mut buffer[..k_dim]);
                scores[i] = dot(q, key) * scale;
            });
            if scored.is_none() {
                y.fill(f32::NAN);
                return;
            }
            let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            scores.iter_mut().for_each(|s| *s = (*s - max).exp());
            let sum: f32 = scores.iter().sum();
            y.fill(0.0);
            each(&mut |i, at| {
                let value = E::load(&values[at * v_dim..(at + 1) * v_dim], &mut buffer[..v_dim]);
                for (y, v) in y.iter_mut().zip(value) {
                    *y += scores[i] * v;
                }
            });
            y.iter_mut().for_each(|y| *y /= sum);
        });
    });
}
