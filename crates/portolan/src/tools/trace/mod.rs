//! Teacher-forced logit traces: what a model makes of every position of a text, when it is given the text as it stands
//! and never its own choices.
//!
//! Two ways to compute one model (two devices, two kernels, two widths of a step) are held against each other by two
//! traces of the same corpus: see [`super::compare`]. `docs/traces.md` has the format of the file.

mod checkpoint;
mod data;
mod file;
mod header;

use portolan_kernels::PortPolicy;
use portolan_text::EncodeOptions;

pub use checkpoint::checkpoint_sha256;
pub use data::{Recorder, Trace};
pub use header::{FORMAT, TraceArguments, TraceCorpus, TraceDevice, TraceHeader};

use crate::{Core, Error, LoadOptions, Plan, Result, SeqStep, Want, loader, sample::check_finite};

/// Positions that are scored where nothing else is asked for and the corpus is long enough.
pub const DEFAULT_POSITIONS: usize = 2000;

/// The fewest likeliest tokens that a trace keeps, so that a rank up to 10 can be told.
pub const LEAST_TOP: usize = 10;

/// What is traced, and in what steps.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceOptions {
    /// Positions to score; none takes what the corpus has, up to [`DEFAULT_POSITIONS`].
    pub positions: Option<usize>,
    /// Rows of a scored step: 1 is token by token. The last step of a window may have fewer.
    pub width: usize,
    /// Tokens of the corpus before the first scored position of a window. They are computed in chunks, and want no
    /// logits.
    pub context_before: usize,
    /// Rows of a step that computes those.
    pub chunk: usize,
    /// How many of the likeliest tokens are kept of each position, at least [`LEAST_TOP`] or the whole vocabulary.
    pub top: usize,
    /// Keep the logits of the whole vocabulary as well: `positions * vocab * 4` bytes.
    pub full: bool,
}

impl Default for TraceOptions {
    fn default() -> Self {
        TraceOptions { positions: None, width: 1, context_before: 512, chunk: 512, top: 256, full: false }
    }
}

/// A text as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corpus {
    /// Its name, for the header.
    pub name: String,
    /// Its tokens.
    pub ids: Vec<u32>,
}

impl Corpus {
    /// The tokens of `text` in the vocabulary of a model, with the token that the model wants at the begin of a text.
    pub fn from_text(name: &str, text: &str, plan: &Plan) -> Result<Self> {
        let tokenizer = loader::texts(&plan.checkpoint)
            .0
            .map_err(|reason| Error::NoTokenizer { model: plan.checkpoint.path.clone(), reason })?;
        let ids = tokenizer.encode(text, EncodeOptions { add_special: true, parse_special: false })?;
        Ok(Corpus { name: name.to_owned(), ids })
    }
}

impl TraceOptions {
    /// The options to load a model with for such a trace: `base`, with steps of the sizes that it takes.
    pub fn load_options(&self, base: &LoadOptions) -> LoadOptions {
        let mut options = base.clone();
        options.chunk = self.chunk.max(self.width).max(1);
        options.max_logits = self.width.max(1);
        options.max_sequences = 1;
        options
    }

    /// Refuses numbers with which nothing could be traced, by name and value.
    ///
    /// # Errors
    /// [`Error::BadOption`].
    pub fn check(&self) -> Result<()> {
        let least = |option, value: usize, least, expected| {
            if value >= least {
                return Ok(());
            }
            Err(Error::BadOption { option, value: value.to_string(), expected })
        };
        least("positions", self.positions.unwrap_or(1), 1, "at least 1")?;
        least("width", self.width, 1, "at least 1")?;
        least("chunk", self.chunk, 1, "at least 1")?;
        least("top", self.top, LEAST_TOP, "at least 10")
    }

    /// How many positions of a corpus of `tokens` are scored, and how many of a sequence of at most `context` tokens.
    ///
    /// A position is scored by the token behind it, so the last token of the corpus is only ever a target.
    fn windows(&self, tokens: usize, context: usize) -> Result<(usize, usize)> {
        self.check()?;
        let before = self.context_before;
        if before >= context {
            let value = format!("{before} where the context is {context}");
            let expected =
                "fewer tokens than the context has; give a larger --context, or less context before";
            return Err(Error::BadOption { option: "context before", value, expected });
        }
        let most = tokens.saturating_sub(before).saturating_sub(1);
        let positions = self.positions.unwrap_or(most.clamp(1, DEFAULT_POSITIONS));
        if positions > most {
            let need = before.saturating_add(positions).saturating_add(1);
            return Err(Error::CorpusTooShort { need, have: tokens });
        }
        Ok((positions, (context - before).min(positions)))
    }
}

/// Traces a corpus. `core` is `plan` loaded with [`TraceOptions::load_options`] of `load`. `progress` is told the
/// positions done and the positions in all.
///
/// The scored positions follow each other in the corpus. Where they do not fit into one sequence of the model's context,
/// they are cut into windows: each is a sequence of its own that begins with the `context_before` tokens before its
/// first scored position, so a position sees at least so many.
///
/// # Errors
/// What the options or the corpus have wrong; a step that fails; logits that are not numbers.
pub fn trace(
    core: &mut Core,
    plan: &Plan,
    load: &LoadOptions,
    corpus: &Corpus,
    options: &TraceOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Trace> {
    let (positions, each) = options.windows(corpus.ids.len(), core.context())?;
    let before = options.context_before;
    let tokens = corpus.ids.iter().take(before + positions + 1).copied().collect::<Vec<u32>>();
    let header = header(plan, load, corpus, options, positions, before + each)?;
    let mut recorder = Recorder::new(header, tokens.clone(), options.full)?;
    for start in (0..positions).step_by(each) {
        let end = (start + each).min(positions);
        let seq = core.create();
        // The window's rows: its context, then the positions that are scored.
        let rows = tokens.get(start..before + end).unwrap_or_default();
        let result = window(core, seq, rows, options, &mut |row, logits| {
            check_finite(logits, start + row)?;
            recorder.push(logits)?;
            progress(start + row + 1 - before, positions);
            Ok(())
        });
        core.discard(seq);
        result?;
    }
    recorder.finish()
}

/// Computes one window, and gives each scored row with its logits to `scored`.
fn window(
    core: &mut Core,
    seq: crate::SeqId,
    rows: &[u32],
    options: &TraceOptions,
    scored: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
) -> Result<()> {
    let (context, positions) = rows.split_at(options.context_before.min(rows.len()));
    for tokens in context.chunks(options.chunk.min(core.limits().rows).max(1)) {
        core.step(&[SeqStep { seq, tokens, want: Want::None }])?;
    }
    for tokens in positions.chunks(options.width) {
        let first = core.len(seq)?;
        core.step(&[SeqStep { seq, tokens, want: Want::All }])?;
        for row in 0..tokens.len() {
            scored(first + row, core.logits(row))?;
        }
    }
    Ok(())
}

fn header(
    plan: &Plan,
    load: &LoadOptions,
    corpus: &Corpus,
    options: &TraceOptions,
    positions: usize,
    window: usize,
) -> Result<TraceHeader> {
    let caps = plan.device.caps();
    let vocab = plan.model.graph.vocab;
    let name = plan.checkpoint.path.file_name().unwrap_or(plan.checkpoint.path.as_os_str());
    let switches = PortPolicy::from_env()?.switches;
    Ok(TraceHeader {
        model: name.to_string_lossy().into_owned(),
        checkpoint_sha256: checkpoint_sha256(&plan.checkpoint)?,
        corpus: TraceCorpus { name: corpus.name.clone(), ..Default::default() },
        vocab,
        positions,
        arguments: TraceArguments {
            width: options.width,
            context_before: options.context_before,
            window,
            chunk: options.chunk,
            top: options.top.min(vocab),
            exact: load.exact,
            deterministic: load.deterministic,
            cache: load.cache_dtype().name().to_owned(),
            ports: switches.iter().map(|(op, &open)| (op.name().to_owned(), open)).collect(),
        },
        device: TraceDevice {
            id: caps.id.to_string(),
            name: caps.name.clone(),
            arch: caps.arch.clone(),
            units: caps.units,
        },
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `(positions, positions a window)` of a corpus, or the error.
    #[track_caller]
    fn check(
        asked: Option<usize>,
        before: usize,
        tokens: usize,
        context: usize,
        expected: Result<(usize, usize), &str>,
    ) {
        let options = TraceOptions { positions: asked, context_before: before, ..Default::default() };
        let found = options.windows(tokens, context).map_err(|e| e.to_string());
        match expected {
            Ok(expected) => assert_eq!(found, Ok(expected)),
            Err(part) => {
                assert!(found.as_ref().is_err_and(|e| e.contains(part)), "{found:?} does not say '{part}'")
            }
        }
    }

    #[test]
    fn windows() {
        check(None, 0, 11, 100, Ok((10, 10)));
        check(None, 0, 11, 10, Ok((10, 10)));
        check(None, 0, 11, 4, Ok((10, 4)));
        check(None, 0, 9000, 9000, Ok((2000, 2000)));
        check(Some(3000), 0, 9000, 9000, Ok((3000, 3000)));
        check(None, 512, 9000, 8192, Ok((2000, 2000)));
        check(None, 512, 9000, 513, Ok((2000, 1)));
        check(Some(10), 512, 523, 600, Ok((10, 10)));
        check(Some(11), 512, 523, 600, Err("524 tokens are needed, and it has 523"));
        check(None, 512, 513, 600, Err("514 tokens are needed, and it has 513"));
        check(None, 0, 1, 600, Err("2 tokens are needed, and it has 1"));
        check(None, 0, 0, 600, Err("it has 0"));
        check(None, 512, 9000, 512, Err("512 where the context is 512"));
        check(Some(0), 0, 9000, 512, Err("positions is 0"));
        check(Some(usize::MAX), 9, 9000, 512, Err("it has 9000"));
    }

    #[test]
    fn options_that_make_no_sense() {
        for (options, part) in [
            (TraceOptions { width: 0, ..Default::default() }, "width is 0"),
            (TraceOptions { chunk: 0, ..Default::default() }, "chunk is 0"),
            (TraceOptions { top: 9, ..Default::default() }, "top is 9"),
        ] {
            let error = options.windows(9000, 8192).unwrap_err().to_string();
            assert!(error.contains(part), "'{error}' does not say '{part}'");
        }
    }
}
