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

    /// A request of a simulation.
    #[derive(Clone, Copy, Debug)]
    struct Asked {
        prompt: usize,
        wanted: usize,
        /// The step at which it comes.
        comes: usize,
        /// The step at which it is cancelled, if it lives so long.
        cancelled: Option<usize>,
    }

    #[derive(Clone, Debug)]
    struct Sim {
        asked: Asked,
        job: Job,
        generated: usize,
        alive: bool,
    }

    /// Runs requests to their end on a pool of pages; every one must end, and pages must be conserved. Gives the number
    /// of tokens that each generated.
    fn simulate(requests: &[Asked], rows: usize, seqs: usize, total: usize) -> Vec<usize> {
        let mut sims: Vec<Sim> = Vec::new();
        let mut coming: Vec<Asked> = requests.to_vec();
        coming.sort_by_key(|asked| asked.comes);
        coming.reverse();
        let work: usize = requests.iter().map(|asked| asked.prompt + asked.wanted).sum();
        let last = requests.iter().map(|asked| asked.comes).max().unwrap_or(0);
        let bound = 50 + last + 4 * work * requests.len();
        for now in 0..bound {
            while let Some(asked) = coming.pop_if(|asked| asked.comes <= now) {
                let job = Job { known: asked.prompt, computed: 0, pages: 0, running: false };
                sims.push(Sim { asked, job, generated: 0, alive: true });
            }
            for sim in sims.iter_mut().filter(|sim| sim.asked.cancelled.is_some_and(|at| at <= now)) {
                (sim.alive, sim.job.pages) = (false, 0);
            }
            let live: Vec<usize> = (0..sims.len()).filter(|&i| sims[i].alive).collect();
            if live.is_empty() {
                match coming.is_empty() {
                    true => return sims.iter().map(|sim| sim.generated).collect(),
                    false => continue,
                }
            }
            let jobs: Vec<Job> = live.iter().map(|&i| sims[i].job).collect();
            let held: usize = jobs.iter().map(|j| j.pages).sum();
            assert!(held <= total, "more pages are held than there are");
            let step = schedule(&jobs, Room { rows, seqs, pages: total - held });
            assert!(!(step.run.is_empty() && step.admit.is_empty()), "a step that does nothing: {jobs:?}");
            // The oldest of those that run is never put back, so it always advances.
            let oldest = (0..jobs.len()).find(|&i| jobs[i].running);
            assert!(oldest.is_none_or(|i| !step.preempt.contains(&i)), "the oldest is put back: {step:?}");
            for &i in &step.preempt {
                let sim = &mut sims[live[i]];
                assert!(sim.job.running && !step.run.iter().any(|&(run, _)| run == i), "{step:?}");
                sim.job =
                    Job { known: sim.asked.prompt + sim.generated, computed: 0, pages: 0, running: false };
            }
            assert!(step.run.iter().map(|(_, n)| n).sum::<usize>() <= rows);
            assert!(step.run.len() <= seqs);
            for &(i, n) in &step.run {
                let sim = &mut sims[live[i]];
                assert!(sim.job.running && n > 0, "{step:?}");
                sim.job.pages += missing_pages(&sim.job, n);
                sim.job.computed += n;
                assert!(sim.job.computed <= sim.job.known && sim.job.pages * PAGE_TOKENS >= sim.job.computed);
                if sim.job.computed == sim.job.known {
                    sim.generated += 1;
                    sim.job.known += 1;
                    if sim.generated == sim.asked.wanted {
                        (sim.alive, sim.job.pages) = (false, 0);
                    }
                }
            }
            for &i in &step.admit {
                assert!(!sims[live[i]].job.running, "{step:?}");
                sims[live[i]].job.running = true;
            }
        }
        panic!("not all requests ended within {bound} steps");
    }

    fn asked(prompt: usize, wanted: usize) -> Asked {
        Asked { prompt, wanted, comes: 0, cancelled: None }
    }

    #[test]
    fn vllm_45387_a_full_cache_does_not_livelock() {
        // Two requests that fit alone but not together.
        assert_eq!(simulate(&[asked(60, 60); 2], 64, 4, 4), [60, 60]);
        assert_eq!(simulate(&[asked(31, 97); 3], 8, 3, 4), [97; 3]);
        // A newer one that comes when the older has all the pages, and one that goes just then.
        let late = |comes, cancelled| Asked { prompt: 60, wanted: 60, comes, cancelled };
        assert_eq!(simulate(&[late(0, None), late(30, Some(40)), late(35, None)], 64, 4, 4), [60, 0, 60]);
    }

    fn any_asked() -> impl Strategy<Value = Asked> {
        let cancelled = prop_oneof![2 => Just(None), 1 => (0usize..200).prop_map(Some)];
        (1usize..100, 1usize..60, 0usize..80, cancelled)
            .prop_map(|(prompt, wanted, comes, cancelled)| Asked { prompt, wanted, comes, cancelled })
    }

    proptest! {
        /// Whenever they come and go: each ends with what it wanted, or was cancelled, within a bound.
        #[test]
        fn vllm_45388_every_admitted_request_ends(
            requests in prop::collection::vec(any_asked(), 1..8),
            rows in 1usize..64, seqs in 1usize..6, extra in 0usize..8,
        ) {
            // A request that could never fit is refused before it comes here.
            let pages = requests.iter().map(|asked| (asked.prompt + asked.wanted).div_ceil(PAGE_TOKENS));
            let generated = simulate(&requests, rows, seqs, pages.max().unwrap_or(1) + extra);
            let mut in_order = requests.clone();
            in_order.sort_by_key(|asked| asked.comes);
            // `sort_by_key` and the reversal keep equals in an order of their own.
            let mut wanted: Vec<usize> = in_order.iter().filter(|a| a.cancelled.is_none()).map(|a| a.wanted).collect();
            wanted.sort_unstable();
            let mut got = generated;
            got.sort_unstable();
            for want in wanted {
                let at = got.iter().position(|&n| n == want);
                prop_assert!(at.is_some(), "nobody generated {} tokens: {:?}", want, got);
                got.remove(at.unwrap_or(0));
            }
        }
    }
}
