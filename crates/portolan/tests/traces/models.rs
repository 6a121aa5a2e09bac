//! Traces of tiny checkpoints.

use std::path::Path;

use portolan::{
    Core, Error, LoadOptions, Plan,
    device::{Device, cpu::CpuOptions},
    tools::{
        compare::{Comparison, Gate, Verdict, compare},
        logits::logits,
        trace::{Corpus, Trace, TraceOptions, checkpoint_sha256, trace},
    },
    weights::Checkpoint,
};
use portolan_testkit::tiny;

use super::options;

/// A tiny checkpoint whose choices are clear: its last norm is 16 times what it was.
fn model(folder: &Path) {
    tiny::copy("llama", folder);
    let file = tiny::edited_tensors(folder, |tensor| {
        if tensor.name == "model.norm.weight" {
            // The exponent of a bf16 begins at bit 7.
            tensor.bytes.chunks_exact_mut(2).for_each(|b| {
                let bits = u16::from_le_bytes([b[0], b[1]]) + (4 << 7);
                b.copy_from_slice(&bits.to_le_bytes());
            });
        }
        true
    });
    file.write(folder.join("model.safetensors"));
}

const BEFORE: usize = 32;
const POSITIONS: usize = 400;

/// A text of the model's own, after a begin that means nothing: its choices are clear, and its perplexity is near one.
fn corpus(folder: &Path) -> Corpus {
    let begin: Vec<u32> = (0..BEFORE as u32).map(|i| (i * i * 37 + 11) % 512).collect();
    let mut core = load(folder, &exact(512));
    let text = logits(&mut core, &begin, POSITIONS + 1, 16).unwrap().greedy_ids;
    Corpus { name: "its own".into(), ids: [begin, text].concat() }
}

fn exact(context: usize) -> LoadOptions {
    let mut options = LoadOptions::default();
    (options.exact, options.context, options.max_logits) = (true, Some(context), 128);
    options
}

fn plan(folder: &Path, options: &LoadOptions) -> Plan {
    Plan::new(folder, &Device::cpu(&CpuOptions { threads: 2 }).unwrap(), options).unwrap()
}

fn load(folder: &Path, options: &LoadOptions) -> Core {
    Core::load(&plan(folder, options), &mut |_, _| ()).unwrap()
}

/// Traces a corpus with steps of `width`.
fn traced(folder: &Path, corpus: &Corpus, width: usize, load: &LoadOptions) -> Trace {
    let mut options = TraceOptions::default();
    (options.width, options.context_before, options.chunk, options.full) = (width, BEFORE, 20, true);
    let plan = plan(folder, &options.load_options(load));
    let mut core = Core::load(&plan, &mut |_, _| ()).unwrap();
    let mut told = Vec::new();
    let found = trace(&mut core, &plan, load, corpus, &options, &mut |done, all| told.push((done, all)));
    assert_eq!(told, (1..=POSITIONS).map(|done| (done, POSITIONS)).collect::<Vec<_>>());
    let (free, _, all) = core.pages();
    assert_eq!(free, all, "pages are left behind");
    found.unwrap()
}

fn gate(comparison: &Comparison, name: &str) -> Gate {
    *comparison.gates.iter().find(|gate| gate.name == name).unwrap()
}

#[test]
fn widths_agree_and_a_changed_model_does_not() {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    let corpus = corpus(folder.path());
    let reference = traced(folder.path(), &corpus, 1, &exact(512));
    assert_eq!((reference.positions(), reference.header().arguments.window), (POSITIONS, 432));
    let mut options = options(0.1);
    options.other_width = true;
    for width in [1, 8, 256] {
        let other = traced(folder.path(), &corpus, width, &exact(512));
        let comparison = compare(&reference, &other, &options).unwrap();
        assert_eq!(comparison.verdict, Verdict::Pass, "width {width}: {comparison:#?}");
        assert_eq!(
            comparison.largest_logit_difference, 0.0,
            "exact kernels do not know of the width: {width}"
        );
    }
    // The fast kernels round to an f16 cache; these weights are not quantized.
    let mut fast = exact(512);
    fast.exact = false;
    let fast = compare(&reference, &traced(folder.path(), &corpus, 1, &fast), &options).unwrap();
    assert_eq!(fast.verdict, Verdict::Pass, "{fast:#?}");
    assert!(fast.differences.iter().any(|d| d.what == "exact"));

    // One column of one matrix is another.
    let changed = tempfile::tempdir().unwrap();
    std::fs::copy(folder.path().join("config.json"), changed.path().join("config.json")).unwrap();
    let file = tiny::edited_tensors(folder.path(), |tensor| {
        if tensor.name == "model.layers.1.mlp.down_proj.weight" {
            tensor.bytes.chunks_exact_mut(tensor.shape[1] * 2).for_each(|row| row[..16].fill(0));
        }
        true
    });
    file.write(changed.path().join("model.safetensors"));
    let other = traced(changed.path(), &corpus, 1, &exact(512));
    assert_eq!(compare(&reference, &other, &options).unwrap_err()[0].what, "checkpoint");
    options.other_checkpoint = true;
    let comparison = compare(&reference, &other, &options).unwrap();
    assert_eq!(comparison.verdict, Verdict::Fail);
    assert!(!gate(&comparison, "mean_kl").pass, "{comparison:#?}");
}

#[test]
fn a_window_begins_with_its_context() {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    const WINDOW: usize = 100;
    let corpus = corpus(folder.path());
    let found = traced(folder.path(), &corpus, 8, &exact(WINDOW));
    let mut core = load(folder.path(), &exact(512));
    for start in (0..POSITIONS).step_by(WINDOW - BEFORE) {
        let end = (start + WINDOW).min(BEFORE + POSITIONS);
        let expected = logits(&mut core, &corpus.ids[start..end], 0, WINDOW).unwrap();
        for (row, expected) in expected.logits.chunks(expected.vocab).enumerate().skip(BEFORE) {
            let position = start + row - BEFORE;
            assert!(found.logits(position) == Some(expected), "position {position} differs");
            assert_eq!(found.next(position), Some(corpus.ids[start + row + 1]));
        }
    }
}

#[test]
fn the_hash_tells_checkpoints_apart() {
    let folder = tempfile::tempdir().unwrap();
    tiny::copy("llama", folder.path());
    let hash = || checkpoint_sha256(&Checkpoint::open(folder.path()).unwrap()).unwrap();
    let path = folder.path().join("model.safetensors");
    let weights = std::fs::read(&path).unwrap();
    let first = hash();
    assert_eq!((first.len(), hash()), (64, first.clone()));
    let mut seen = vec![first];
    let mut check = |what: &str| {
        let found = hash();
        assert!(!seen.contains(&found), "{what} is not seen");
        seen.push(found);
    };
    let last = weights.len() - 1;
    for (what, at) in
        [("the last byte", last), ("a byte near the end", last - 65_000), ("a byte of the begin", 60_000)]
    {
        let mut changed = weights.clone();
        changed[at] ^= 1;
        std::fs::write(&path, changed).unwrap();
        check(what);
    }
    tiny::edit_config(folder.path(), |config| drop(config.insert("rms_norm_eps".into(), 1e-6.into())));
    check("the configuration");
    let opened = Checkpoint::open(folder.path()).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(checkpoint_sha256(&opened), Err(Error::Read { path: named, .. }) if named == path));
}
