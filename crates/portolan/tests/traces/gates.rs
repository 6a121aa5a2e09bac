//! Two traces in memory.

use portolan::{
    sample::log_sum_exp,
    tools::{
        compare::{CompareOptions, LEAST_DECIDED, Verdict, compare},
        trace::{Recorder, TraceHeader},
    },
};

use super::{NEXT, header, of_rows, options, record, row};

/// Compares `positions` rows of one margin with the same after `change`: the verdict, and the gates that fail.
#[track_caller]
fn check(
    (positions, margin, error): (usize, f32, f32),
    change: impl Fn(usize, &mut [f32]),
    verdict: Verdict,
    failed: &[&str],
) {
    let rows = vec![row(margin); positions];
    let mut changed = rows.clone();
    changed.iter_mut().enumerate().for_each(|(i, row)| change(i, row));
    let found = compare(&of_rows(&rows), &of_rows(&changed), &options(error)).unwrap();
    let names: Vec<&str> = found.gates.iter().filter(|gate| !gate.pass).map(|gate| gate.name).collect();
    assert_eq!((found.verdict, names.as_slice()), (verdict, failed), "{found:#?}");
}

/// Swaps the likeliest token of position 7 with another.
fn swap(i: usize, row: &mut [f32]) {
    if i == 7 {
        row.swap(0, 1);
    }
}

#[test]
fn each_gate_fails_alone() {
    check((400, 2.0, 0.1), |_, _| (), Verdict::Pass, &[]);
    // The stated error allows the flip, but the position is decided.
    check((400, 2.0, 1.0), swap, Verdict::Fail, &["decided_disagreements"]);
    // The position is not decided, but the flip is beyond the stated error.
    check((400, 1.9, 0.9), swap, Verdict::Fail, &["flips_beyond_error"]);
    check((400, 2.0, 0.1), swap, Verdict::Fail, &["decided_disagreements", "flips_beyond_error"]);
    // Tokens that are neither likeliest nor next change places: the sum stays, and so does the perplexity.
    check((400, 2.0, 0.1), |_, row| row.swap(2, 3), Verdict::Fail, &["mean_kl"]);
    // The next token is unlikely, so its logit means much to the perplexity and little to the divergence.
    check((400, 2.0, 0.1), |_, row| row[NEXT] += 0.01, Verdict::Fail, &["perplexity_delta"]);
    check((400, 2.0, 0.1), |_, row| row[NEXT] -= 0.01, Verdict::Fail, &["perplexity_delta"]);
    // All logits moved together is no difference; a hair is within every limit.
    check((400, 2.0, 0.1), |_, row| row.iter_mut().for_each(|l| *l += 3.0), Verdict::Pass, &[]);
    check((400, 2.0, 0.1), |_, row| row[NEXT] += 1e-6, Verdict::Pass, &[]);
}

#[test]
fn few_decided_positions_are_no_pass() {
    check((LEAST_DECIDED, 2.0, 0.1), |_, _| (), Verdict::Pass, &[]);
    check((LEAST_DECIDED - 1, 2.0, 0.1), |_, _| (), Verdict::Inconclusive, &[]);
    // Not decided, however many.
    check((1000, 1.99, 0.1), |_, _| (), Verdict::Inconclusive, &[]);
    // A fault that is seen is one.
    check((299, 2.0, 1.0), swap, Verdict::Fail, &["decided_disagreements"]);
}

/// The names of what does not match between a trace and one with another header.
#[track_caller]
fn check_mismatch(change: impl Fn(&mut TraceHeader), options: &CompareOptions, expected: &[&str]) {
    let rows = vec![row(2.0); 4];
    let mut other = header(4);
    change(&mut other);
    let mut rows_of_other = vec![row(2.0); other.positions];
    rows_of_other.iter_mut().for_each(|row| row.resize(other.vocab, 0.0));
    let found = compare(&of_rows(&rows), &record(other, &rows_of_other, false), options);
    let names: Vec<&str> = found.err().into_iter().flatten().map(|m| m.what).collect();
    assert_eq!(names, expected);
}

#[test]
fn what_does_not_match() {
    let options = options(0.1);
    check_mismatch(|_| (), &options, &[]);
    check_mismatch(|h| h.vocab += 1, &options, &["vocabulary"]);
    check_mismatch(|h| h.positions += 1, &options, &["corpus", "positions"]);
    check_mismatch(|h| h.arguments.width = 8, &options, &["width"]);
    check_mismatch(|h| h.arguments.window = 8, &options, &["window"]);
    check_mismatch(|h| h.arguments.context_before = 3, &options, &["corpus", "context before"]);
    check_mismatch(|h| h.checkpoint_sha256 = "abd".into(), &options, &["checkpoint"]);
    let (mut width, mut checkpoint) = (options, options);
    (width.other_width, checkpoint.other_checkpoint) = (true, true);
    check_mismatch(|h| h.arguments.width = 8, &width, &[]);
    check_mismatch(|h| h.checkpoint_sha256 = "abd".into(), &checkpoint, &[]);
    // What may differ.
    check_mismatch(|h| (h.arguments.exact, h.device.id) = (true, "cuda:0".into()), &options, &[]);
    check_mismatch(|h| (h.commit, h.arguments.chunk, h.arguments.top) = ("x".into(), 9, 11), &options, &[]);
    // Another token of the same text.
    let mut recorder = Recorder::new(header(1), vec![NEXT as u32, 59], false).unwrap();
    recorder.push(&row(2.0)).unwrap();
    let found = compare(&of_rows(&[row(2.0)]), &recorder.finish().unwrap(), &options).unwrap_err();
    assert_eq!((found.len(), found[0].what), (1, "corpus"));
}

#[test]
fn numbers_of_a_comparison() {
    // Margins 0.25, 0.75, 1.5, 3; the likeliest token falls to rank 2, 1, 4, 17.
    let rows: Vec<Vec<f32>> = [0.25, 0.75, 1.5, 3.0].map(row).into();
    let mut changed = rows.clone();
    changed[0][1] = 1.0;
    changed[2][1..4].fill(2.0);
    changed[3][4..20].fill(4.0);
    let c = compare(&of_rows(&rows), &of_rows(&changed), &options(0.7)).unwrap();
    assert_eq!((c.positions, c.disagreements, c.verdict), (4, 3, Verdict::Fail));
    let ranks =
        [c.ranks.first, c.ranks.second, c.ranks.third_to_fifth, c.ranks.sixth_to_tenth, c.ranks.beyond];
    assert_eq!(ranks, [1, 1, 1, 0, 1]);
    let sweep: Vec<_> = c.sweep.iter().map(|s| (s.threshold, s.decided, s.disagreements)).collect();
    assert_eq!(sweep, [(0.5, 3, 2), (1.0, 2, 2), (2.0, 1, 1)]);
    let bands: Vec<_> = c.margins.iter().map(|b| (b.positions, b.disagreements)).collect();
    assert_eq!(bands, [(0, 0), (1, 1), (1, 0), (1, 1), (1, 1), (0, 0)]);
    assert_eq!((c.largest_margin_at_disagreement, c.flips_beyond_error), (Some(3.0), 2));
    assert_eq!(c.largest_logit_difference, 4.0);
    // The means against sums of their own, with the f32 logarithm of the sampler.
    let nll = |rows: &[Vec<f32>]| rows.iter().map(|r| f64::from(log_sum_exp(r) - r[NEXT])).sum::<f64>() / 4.0;
    let kl = rows.iter().zip(&changed).map(|(p, q)| {
        let (a, b) = (log_sum_exp(p), log_sum_exp(q));
        p.iter().zip(q).map(|(p, q)| f64::from((p - a).exp() * ((p - a) - (q - b)))).sum::<f64>()
    });
    let kl: Vec<f64> = kl.collect();
    // The sampler's logarithm is in f32, so it is off by about 1e-7.
    let close = |found: f64, expected: f64| {
        assert!((found - expected).abs() < 1e-5 * expected.abs().max(1.0), "{found}, expected {expected}");
    };
    close(c.reference.nll, nll(&rows));
    close(c.other.nll, nll(&changed));
    close(c.perplexity_delta, nll(&changed).exp() - nll(&rows).exp());
    close(c.kl.mean, kl.iter().sum::<f64>() / 4.0);
    close(c.kl.max, kl.iter().copied().fold(0.0, f64::max));
    assert!(c.kl.exact && c.kl.rest == 0.0);
    // From the likeliest alone: less, but not nothing. One full trace knows more than none.
    let half = |rows: &[Vec<f32>]| record(header(4), rows, false);
    let neither = compare(&half(&rows), &half(&changed), &options(0.1)).unwrap().kl;
    let one = compare(&half(&rows), &of_rows(&changed), &options(0.1)).unwrap().kl;
    assert!(!neither.exact && neither.rest > one.rest && one.rest > 0.3);
    assert!(0.0 < neither.mean && neither.mean <= one.mean && one.mean < c.kl.mean, "{neither:?} {one:?}");
}
