//! Who runs in the next step. Pure: jobs and free pages in, a step out.
//!
//! Jobs stand in the order in which they came. Running jobs go first: those that decode with one row each, then
//! those that still compute their prompt, in chunks, as far as the step's rows reach. Waiting jobs are admitted in
//! order, as soon as the cache can hold all their tokens. Where a running job lacks pages, the newest running job
//! is put back to waiting and its pages are freed: so the oldest always advances, and every job that fits the
//! cache alone ends.

use portolan_kernels::PAGE_TOKENS;

/// A request as the scheduler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    /// Tokens known so far: the prompt and what was generated.
    pub(crate) known: usize,
    /// Positions in the cache. Always fewer than `known`: the last known token is yet to be computed.
    pub(crate) computed: usize,
    /// Pages that it holds; 0 when waiting.
    pub(crate) pages: usize,
    /// It has a place in the cache.
    pub(crate) running: bool,
}

/// What a step may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Rows of a step.
    pub(crate) rows: usize,
    /// Sequences of a step.
    pub(crate) seqs: usize,
    /// Pages that are free or can be freed without touching a running job.
    pub(crate) pages: usize,
}

/// The next step. Indices are those of the jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// To be put back to waiting, their pages freed; before anything else.
    pub(crate) preempt: Vec<usize>,
    /// To be given a place in the cache. They run from the next step on, when it is known how much of their
    /// prompt the cache still holds.
    pub(crate) admit: Vec<usize>,
    /// Rows of each job that runs.
    pub(crate) run: Vec<(usize, usize)>,
}

fn missing_pages(job: &Job, rows: usize) -> usize {
    (job.computed + rows).div_ceil(PAGE_TOKENS).saturating_sub(job.pages)
}

/// Decides the next step.
pub(crate) fn schedule(jobs: &[Job], mut room: Room) -> Step {
    let mut step = Step::default();
    let mut running: Vec<usize> = (0..jobs.len()).filter(|&i| jobs[i].running).collect();
    // Decoding jobs take a row each before any prompt gets the rest: short waits for who is being read.
    let order = |list: &[usize]| {
        let decodes = |&i: &usize| jobs[i].known - jobs[i].computed == 1;
        let (first, then): (Vec<usize>, Vec<usize>) = list.iter().copied().partition(decodes);
        first.into_iter().chain(then).collect::<Vec<_>>()
    };
    loop {
        step.run.clear();
        let (mut rows_left, mut pages_left, mut short) = (room.rows, room.pages, false);
        for index in order(&running) {
            let job = &jobs[index];
            let rows = (job.known - job.computed).min(rows_left);
            if rows == 0 || step.run.len() == room.seqs {
                continue;
            }
            let pages = missing_pages(job, rows);
            if pages > pages_left {
                short = true;
                break;
            }
            pages_left -= pages;
            rows_left -= rows;
            step.run.push((index, rows));
        }
        if !short || running.len() <= 1 {
            break;
        }
        // The newest is the last in the order of arrival.
        if let Some(newest) = running.pop() {
            room.pages += jobs[newest].pages;
            step.preempt.push(newest);
        }
    }
    // Nobody is admitted while somebody is put back: the two would swap places for ever.
    if step.preempt.is_empty() {
        let mut pages_left =
            room.pages - step.run.iter().map(|&(i, n)| missing_pages(&jobs[i], n)).sum::<usize>();
        let seats = room.seqs.saturating_sub(running.len());
        for (index, job) in jobs.iter().enumerate().filter(|(_, j)| !j.running).take(seats) {
            // Its known tokens and one more, so that an admitted job can at least take a step of decoding.
            let pages = (job.known + 1).div_ceil(PAGE_TOKENS);
            if pages > pages_left {
                break;
            }
            pages_left -= pages;
            step.admit.push(index);
        }
    }
    step
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    struct Sim {
        job: Job,
        prompt: usize,
        generated: usize,
        wanted: usize,
        alive: bool,
    }

    /// Runs requests to their end on a pool of pages; every one must end, and pages must be conserved.
    fn simulate(requests: &[(usize, usize)], rows: usize, seqs: usize, total: usize) {
        let mut sims: Vec<Sim> = requests
            .iter()
            .map(|&(prompt, wanted)| Sim {
                job: Job { known: prompt, computed: 0, pages: 0, running: false },
                prompt,
                generated: 0,
                wanted,
                alive: true,
            })
            .collect();
        let work: usize = requests.iter().map(|(p, w)| p + w).sum();
        let bound = 50 + 4 * work * requests.len();
        for _ in 0..bound {
            let live: Vec<usize> = (0..sims.len()).filter(|&i| sims[i].alive).collect();
            if live.is_empty() {
                return;
            }
            let jobs: Vec<Job> = live.iter().map(|&i| sims[i].job).collect();
            let held: usize = jobs.iter().map(|j| j.pages).sum();
            assert!(held <= total, "more pages are held than there are");
            let step = schedule(&jobs, Room { rows, seqs, pages: total - held });
            assert!(!(step.run.is_empty() && step.admit.is_empty()), "a step that does nothing: {jobs:?}");
            for &i in &step.preempt {
                let sim = &mut sims[live[i]];
                assert!(sim.job.running);
                sim.job = Job { known: sim.prompt + sim.generated, computed: 0, pages: 0, running: false };
            }
            assert!(step.run.iter().map(|(_, n)| n).sum::<usize>() <= rows);
            assert!(step.run.len() <= seqs);
            for &(i, n) in &step.run {
                let sim = &mut sims[live[i]];
                assert!(sim.job.running && n > 0, "{step:?}");
                sim.job.pages += missing_pages(&sim.job, n);
                sim.job.computed += n;
                if sim.job.computed == sim.job.known {
                    sim.generated += 1;
                    sim.job.known += 1;
                    if sim.generated == sim.wanted {
                        sim.alive = false;
                        sim.job.pages = 0;
                    }
                }
            }
            for &i in &step.admit {
                sims[live[i]].job.running = true;
            }
        }
        panic!("not all requests ended within {bound} steps");
    }

    #[test]
    fn vllm_45387_a_full_cache_does_not_livelock() {
        // Two requests that fit alone but not together.
        simulate(&[(60, 60), (60, 60)], 64, 4, 4);
        simulate(&[(31, 97), (31, 97), (31, 97)], 8, 3, 4);
    }

    proptest! {
        #[test]
        fn every_admitted_request_ends(
            requests in prop::collection::vec((1usize..100, 1usize..60), 1..8),
            rows in 1usize..64, seqs in 1usize..6, extra in 0usize..8,
        ) {
            // A request that could never fit is refused before it comes here.
            let largest = requests.iter().map(|(p, w)| (p + w).div_ceil(PAGE_TOKENS)).max().unwrap_or(1);
            simulate(&requests, rows, seqs, largest + extra);
        }
    }
}
