//! Speed of prefill and decode, under llama-bench's names: `pp512`, `tg128`, `tg128@d4096`.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use portolan_kernels::OpKind;

use crate::{
    Core, Error, Result, SamplingParams, SeqId, SeqStep, Want,
    sample::{Sampler, philox4x32},
};

/// What is measured.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Tokens of the prompts; each gives a `pp` row.
    pub prompts: Vec<usize>,
    /// Tokens generated; each gives a `tg` row.
    pub generated: Vec<usize>,
    /// Tokens in the cache before either.
    pub depths: Vec<usize>,
    /// How often each row is measured, after one run to warm up.
    pub repetitions: usize,
    /// Sample each generated token so; none feeds tokens that are fixed beforehand, and measures the model alone.
    pub sampling: Option<SamplingParams>,
}

/// A row of the table.
#[derive(Clone, Debug)]
pub struct BenchRow {
    /// `pp512`, `tg128@d4096`.
    pub name: String,
    /// Tokens a run.
    pub tokens: usize,
    /// Seconds of each run.
    pub seconds: Vec<f64>,
}

impl BenchRow {
    /// Tokens a second of each run, ascending.
    pub fn rates(&self) -> Vec<f64> {
        let mut rates: Vec<f64> = self.seconds.iter().map(|s| self.tokens as f64 / s).collect();
        rates.sort_by(f64::total_cmp);
        rates
    }

    /// The median rate.
    pub fn median(&self) -> f64 {
        let rates = self.rates();
        match rates.len() {
            0 => 0.0,
            n if n % 2 == 1 => rates[n / 2],
            n => (rates[n / 2 - 1] + rates[n / 2]) / 2.0,
        }
    }

    /// The slowest and the fastest rate.
    pub fn spread(&self) -> (f64, f64) {
        let rates = self.rates();
        (rates.first().copied().unwrap_or(0.0), rates.last().copied().unwrap_or(0.0))
    }
}

/// The name of a row.
fn name(kind: &str, tokens: usize, depth: usize) -> String {
    if depth == 0 { format!("{kind}{tokens}") } else { format!("{kind}{tokens}@d{depth}") }
}

/// Tokens that look like text to nobody, the same in every run.
fn tokens(n: usize, vocab: usize, salt: u32) -> Vec<u32> {
    (0..n as u32).map(|i| philox4x32([i, salt, 0, 0], [7, 0])[0] % vocab.max(1) as u32).collect()
}

/// Measures every row; `report` is told of each as it is done.
pub fn bench(
    core: &mut Core,
    options: &BenchOptions,
    report: &mut dyn FnMut(&BenchRow),
) -> Result<Vec<BenchRow>> {
    if options.repetitions == 0 {
        return Err(Error::BadOption { option: "repetitions", value: "0".into(), expected: "at least 1" });
    }
    let mut rows = Vec::new();
    for &depth in &options.depths {
        let cells =
            options.prompts.iter().map(|&n| ("pp", n)).chain(options.generated.iter().map(|&n| ("tg", n)));
        for (kind, n) in cells.filter(|&(_, n)| n > 0) {
            if depth + n > core.context() {
                return Err(Error::ContextOverflow { need: depth + n, context: core.context() });
            }
            let base = core.create();
            let row = measure(core, base, kind, n, depth, options);
            core.discard(base);
            let row = row?;
            report(&row);
            rows.push(row);
        }
    }
    Ok(rows)
}

fn measure(
    core: &mut Core,
    seq: SeqId,
    kind: &str,
    n: usize,
    depth: usize,
    options: &BenchOptions,
) -> Result<BenchRow> {
    let vocab = core.vocab();
    prefill(core, seq, &tokens(depth, vocab, 1), Want::None)?;
    let input = tokens(n, vocab, 2);
    let mut seconds = Vec::new();
    for run in 0..=options.repetitions {
        let started = Instant::now();
        if kind == "pp" {
            prefill(core, seq, &input, Want::Last)?;
        } else {
            decode(core, seq, &input, options.sampling.as_ref())?;
        }
        // The first run warms caches and pages up.
        if run > 0 {
            seconds.push(started.elapsed().as_secs_f64());
        }
        core.truncate(seq, depth)?;
    }
    Ok(BenchRow { name: name(kind, n, depth), tokens: n, seconds })
}

fn prefill(core: &mut Core, seq: SeqId, tokens: &[u32], want: Want) -> Result<()> {
    let chunk = core.limits().rows;
    for (index, part) in tokens.chunks(chunk).enumerate() {
        let last = (index + 1) * chunk >= tokens.len();
        core.step(&[SeqStep { seq, tokens: part, want: if last { want } else { Want::None } }])?;
    }
    Ok(())
}

fn decode(core: &mut Core, seq: SeqId, input: &[u32], sampling: Option<&SamplingParams>) -> Result<()> {
    let mut sampler = sampling.map(|s| Sampler::new(s.clone())).transpose()?;
    let mut generated = Vec::new();
    let mut next = input[0];
    for index in 0..input.len() {
        core.step(&[SeqStep { seq, tokens: &[next], want: Want::Last }])?;
        next = match &mut sampler {
            Some(sampler) => sampler.sample(core.logits(0), &[], &generated)?.id,
            None => input[(index + 1) % input.len()],
        };
        generated.push(next);
    }
    Ok(())
}

/// Time of each op and variant over one run.
#[derive(Clone, Debug, Default)]
pub struct OpProfile {
    /// By op and variant: launches and time.
    pub ops: BTreeMap<(OpKind, &'static str), (usize, Duration)>,
    /// The run's wall time.
    pub wall: Duration,
}

/// One prefill of `prompt` tokens, or `generate` tokens of decode, with the time of each op.
pub fn by_op(
    core: &mut Core,
    prompt: usize,
    generate: usize,
    depth: usize,
) -> Result<(OpProfile, OpProfile)> {
    let vocab = core.vocab();
    let seq = core.create();
    let run = |core: &mut Core, kind: &str, n: usize| -> Result<OpProfile> {
        core.profile(None);
        prefill(core, seq, &tokens(depth, vocab, 1), Want::None)?;
        let input = tokens(n.max(1), vocab, 2);
        core.profile(Some(BTreeMap::new()));
        let started = Instant::now();
        if kind == "pp" {
            prefill(core, seq, &input, Want::Last)?;
        } else {
            decode(core, seq, &input, None)?;
        }
        let wall = started.elapsed();
        let ops = core.profile(None).unwrap_or_default();
        core.truncate(seq, 0)?;
        Ok(OpProfile { ops, wall })
    };
    let profiles = run(core, "pp", prompt).and_then(|pp| Ok((pp, run(core, "tg", generate)?)));
    core.profile(None);
    core.discard(seq);
    profiles
}
