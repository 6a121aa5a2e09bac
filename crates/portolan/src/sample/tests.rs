use proptest::prelude::*;

use super::*;

fn params(change: impl FnOnce(&mut SamplingParams)) -> SamplingParams {
    let mut params = SamplingParams { temperature: 1.0, ..Default::default() };
    change(&mut params);
    params
}

fn draws(params: &SamplingParams, logits: &[f32], n: usize) -> Vec<usize> {
    let mut counts = vec![0; logits.len()];
    let mut sampler = Sampler::new(params.clone()).unwrap();
    let mut generated = Vec::new();
    for _ in 0..n {
        counts[sampler.sample(logits, &[], &generated).unwrap().id as usize] += 1;
        generated.push(0);
    }
    counts
}

/// Which tokens can be drawn at all.
#[track_caller]
fn check_support(change: impl FnOnce(&mut SamplingParams), logits: &[f32], expected: &[usize]) {
    let counts = draws(&params(change), logits, 4000);
    let seen: Vec<usize> = (0..counts.len()).filter(|&i| counts[i] > 0).collect();
    assert_eq!(seen, expected);
}

#[test]
fn filters_keep_what_they_say() {
    // Probabilities 0.4, 0.3, 0.2, 0.1.
    let logits: Vec<f32> = [0.4f32, 0.3, 0.2, 0.1].iter().map(|p| p.ln()).collect();
    check_support(|_| (), &logits, &[0, 1, 2, 3]);
    check_support(|p| p.top_k = 2, &logits, &[0, 1]);
    check_support(|p| p.top_k = 1, &logits, &[0]);
    check_support(|p| p.top_k = 99, &logits, &[0, 1, 2, 3]);
    check_support(|p| p.top_p = 0.65, &logits, &[0, 1]);
    check_support(|p| p.top_p = 0.39, &logits, &[0]);
    check_support(|p| p.top_p = 1e-6, &logits, &[0]);
    check_support(|p| p.min_p = 0.45, &logits, &[0, 1, 2]);
    check_support(|p| p.min_p = 1.0, &logits, &[0]);
    check_support(|p| p.temperature = 0.0, &logits, &[0]);
    check_support(|p| p.logit_bias = vec![(3, f32::NEG_INFINITY), (0, f32::NEG_INFINITY)], &logits, &[1, 2]);
    check_support(|p| p.logit_bias = vec![(77, 1.0)], &logits, &[0, 1, 2, 3]);
}

#[test]
fn draws_follow_the_distribution() {
    let p = [0.5f64, 0.25, 0.125, 0.0625, 0.0625];
    let logits: Vec<f32> = p.iter().map(|p| p.ln() as f32).collect();
    let n = 20_000;
    for seed in [0, 1, 42] {
        let counts = draws(&params(|p| p.seed = seed), &logits, n);
        let chi2: f64 =
            counts.iter().zip(p).map(|(&c, p)| (c as f64 - p * n as f64).powi(2) / (p * n as f64)).sum();
        // Four degrees of freedom: 23.5 is exceeded once in ten thousand.
        assert!(chi2 < 23.5, "chi-square {chi2} with seed {seed}: {counts:?}");
    }
}

#[test]
fn temperature_flattens() {
    let logits = [1.0, 0.0];
    let hot = draws(&params(|p| p.temperature = 2.0), &logits, 20_000)[0] as f64 / 20_000.0;
    let expected = 1.0 / (1.0 + (-0.5f64).exp());
    // Three standard deviations of 20,000 draws.
    assert!((hot - expected).abs() < 0.011, "{hot} against {expected}");
}

#[test]
fn the_same_seed_gives_the_same_tokens() {
    let logits: Vec<f32> = (0..50).map(|i| (i as f32 * 0.7).sin()).collect();
    let run = |seed| {
        let mut sampler = Sampler::new(params(|p| p.seed = seed)).unwrap();
        let mut ids = Vec::new();
        for _ in 0..30 {
            ids.push(sampler.sample(&logits, &[], &ids).unwrap().id);
        }
        ids
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[track_caller]
fn check_penalty(change: impl FnOnce(&mut SamplingParams), prompt: &[u32], text: &[u32], expected: u32) {
    let mut greedy = SamplingParams::greedy();
    change(&mut greedy);
    let mut sampler = Sampler::new(greedy).unwrap();
    let logits = [2.0, 1.5, -1.0, -1.2];
    assert_eq!(sampler.sample(&logits, prompt, text).unwrap().id, expected);
}

#[test]
fn penalties() {
    check_penalty(|_| (), &[0], &[0], 0);
    check_penalty(|p| p.repeat_penalty = 1.5, &[0], &[], 1);
    check_penalty(|p| p.repeat_penalty = 1.5, &[], &[0], 1);
    check_penalty(|p| p.repeat_penalty = 1.1, &[0], &[0], 0);
    check_penalty(|p| p.frequency_penalty = 0.3, &[], &[0, 0], 1);
    check_penalty(|p| p.frequency_penalty = 0.3, &[], &[0], 0);
    check_penalty(|p| p.frequency_penalty = 9.0, &[0], &[], 0);
    check_penalty(|p| p.presence_penalty = 0.6, &[], &[0], 1);
    // The penalised token lies outside the window.
    check_penalty(
        |p| {
            p.repeat_penalty = 9.0;
            p.repeat_last_n = 2;
        },
        &[0],
        &[2, 3],
        0,
    );
}

#[track_caller]
fn check_refused(change: impl FnOnce(&mut SamplingParams)) {
    assert!(matches!(Sampler::new(params(change)), Err(Error::BadOption { .. })));
}

#[test]
fn absurd_parameters_are_refused() {
    for bad in [f32::NAN, f32::INFINITY, -1.0] {
        check_refused(|p| p.temperature = bad);
        check_refused(|p| p.top_p = bad);
        check_refused(|p| p.min_p = bad);
        check_refused(|p| p.repeat_penalty = bad);
    }
    check_refused(|p| p.temperature = 1e-9);
    check_refused(|p| p.top_p = 0.0);
    check_refused(|p| p.repeat_penalty = 0.0);
    check_refused(|p| p.frequency_penalty = f32::NAN);
    check_refused(|p| p.logit_bias = vec![(0, f32::NAN)]);
}

#[test]
fn logits_that_are_not_numbers_are_an_error() {
    let mut sampler = Sampler::new(SamplingParams::greedy()).unwrap();
    for bad in [vec![0.0, f32::NAN], vec![f32::INFINITY, 0.0], vec![f32::NEG_INFINITY; 2], vec![]] {
        assert!(matches!(sampler.sample(&bad, &[1], &[]), Err(Error::BadLogits { position: 1, .. })));
    }
    assert_eq!(sampler.sample(&[f32::NEG_INFINITY, 0.0], &[], &[]).unwrap().id, 1);
}

#[test]
fn logprobs_are_those_of_the_model() {
    let logits: Vec<f32> = [0.1f32, 0.6, 0.3].iter().map(|p| p.ln()).collect();
    let mut sampler = Sampler::new(SamplingParams { logprobs: Some(2), ..Default::default() }).unwrap();
    let sampled = sampler.sample(&logits, &[], &[]).unwrap();
    assert_eq!(sampled.top.iter().map(|t| t.id).collect::<Vec<_>>(), [1, 2]);
    assert!((sampled.logprob.unwrap() - 0.6f32.ln()).abs() < 1e-6);
}

proptest! {
    /// Whatever the parameters, the token is one that the filters allow and the vocabulary has.
    #[test]
    fn any_parameters_give_a_token(
        logits in prop::collection::vec(-30.0f32..30.0, 1..200),
        temperature in 0.05f32..5.0, top_k in 0usize..250, top_p in 0.01f32..=1.0, min_p in 0.0f32..=1.0,
        seed: u64, repeat_penalty in 0.5f32..2.0,
    ) {
        let mut sampler = Sampler::new(SamplingParams {
            temperature, top_k, top_p, min_p, seed, repeat_penalty, ..Default::default()
        }).unwrap();
        let id = sampler.sample(&logits, &[0, 1], &[2]).unwrap().id;
        prop_assert!((id as usize) < logits.len());
    }
}
