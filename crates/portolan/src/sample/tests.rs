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

/// The refusal names the parameter and the value.
#[track_caller]
fn check_refused(name: &str, value: f32, set: impl Fn(&mut SamplingParams, f32)) {
    let error = Sampler::new(params(|p| set(p, value))).map(drop).expect_err(name);
    let text = error.to_string();
    assert!(matches!(error, Error::BadOption { option, .. } if option == name), "{text}");
    assert!(text.starts_with(&format!("{name} is {value}, expected ")), "{text}");
}

type Set = fn(&mut SamplingParams, f32);
const TEMPERATURE: (&str, Set) = ("temperature", |p, x| p.temperature = x);
const TOP_P: (&str, Set) = ("top_p", |p, x| p.top_p = x);
const MIN_P: (&str, Set) = ("min_p", |p, x| p.min_p = x);
const REPEAT: (&str, Set) = ("repeat_penalty", |p, x| p.repeat_penalty = x);
const FREQUENCY: (&str, Set) = ("frequency_penalty", |p, x| p.frequency_penalty = x);
const PRESENCE: (&str, Set) = ("presence_penalty", |p, x| p.presence_penalty = x);
const BIAS: (&str, Set) = ("logit_bias", |p, x| p.logit_bias = vec![(0, x)]);

#[test]
fn absurd_parameters_are_refused_by_name_and_value() {
    let check = |(name, set): (&str, Set), values: &[f32]| {
        values.iter().for_each(|&value| check_refused(name, value, set));
    };
    const NAN: f32 = f32::NAN;
    const INF: f32 = f32::INFINITY;
    check(TEMPERATURE, &[NAN, INF, -INF, -1.0, -1e-30, 1e-30, 9e-5]);
    check(TOP_P, &[NAN, INF, -INF, -1.0, 0.0, -0.0, 1.1, 1.000_001]);
    check(MIN_P, &[NAN, INF, -INF, -1.0, -1e-30, 1.1]);
    check(REPEAT, &[NAN, INF, -INF, -1.0, 0.0, -0.0]);
    check(FREQUENCY, &[NAN, INF, -INF]);
    check(PRESENCE, &[NAN, INF, -INF]);
    check(BIAS, &[NAN, INF]);
}

/// What is allowed, at its ends, alone and all together: always a token that there is.
#[test]
fn parameters_at_their_ends_give_a_token() {
    let ends: [((&str, Set), &[f32]); 7] = [
        (TEMPERATURE, &[0.0, -0.0, 1e-4, 1e30, f32::MAX]),
        (TOP_P, &[f32::MIN_POSITIVE, 1e-45, 1.0]),
        (MIN_P, &[0.0, 1e-45, 1.0]),
        (REPEAT, &[1e-45, 1e-30, 1e30, f32::MAX]),
        (FREQUENCY, &[f32::MIN, -1e30, 1e-45, 1e30, f32::MAX]),
        (PRESENCE, &[f32::MIN, -1e30, 1e30, f32::MAX]),
        (BIAS, &[f32::MIN, f32::MAX, f32::NEG_INFINITY]),
    ];
    let logits: [&[f32]; 4] = [&[0.0], &[1.0, 1.0, 1.0], &[f32::MAX, f32::MIN, 0.0], &[f32::MIN, f32::MIN]];
    let mut tried = 0;
    for logits in logits {
        for (i, &((name, set), values)) in ends.iter().enumerate() {
            for &value in values {
                for &((other, set_other), others) in &ends[i..] {
                    for &another in others {
                        for top_k in [0, 1, logits.len(), 1 << 63, usize::MAX] {
                            let mut p = params(|p| p.seed = u64::MAX);
                            (set(&mut p, value), set_other(&mut p, another));
                            (p.top_k, p.repeat_last_n, p.logprobs) = (top_k, usize::MAX, Some(usize::MAX));
                            let what =
                                format!("{name}={value}, {other}={another}, top_k={top_k} on {logits:?}");
                            let sampled = Sampler::new(p).unwrap().sample(logits, &[0, 1], &[0, 0, 2]);
                            match sampled {
                                Ok(sampled) => {
                                    assert!(
                                        logits[sampled.id as usize] > f32::NEG_INFINITY,
                                        "{what}: {sampled:?}"
                                    );
                                    assert_eq!(sampled.top.len(), logits.len(), "{what}");
                                }
                                // The one token that there is was forbidden.
                                Err(Error::BadOption { option: "logit_bias", .. }) => {
                                    assert_eq!(logits.len(), 1, "{what}")
                                }
                                Err(error) => panic!("{what}: {error}"),
                            }
                            tried += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(tried > 5000, "{tried}");
}

#[test]
fn ties_go_to_the_smallest_id_and_a_draw_to_each() {
    let logits = [1.0, 7.0, 7.0, 7.0];
    let greedy = Sampler::new(SamplingParams::greedy()).unwrap().sample(&logits, &[], &[]).unwrap();
    assert_eq!(greedy.id, 1);
    check_support(|p| p.top_k = 1, &logits, &[1]);
    check_support(|p| p.top_k = 2, &logits, &[1, 2]);
    check_support(|p| p.min_p = 1.0, &logits, &[1, 2, 3]);
    check_support(|p| p.top_p = 0.5, &logits, &[1, 2]);
    check_support(|p| p.temperature = f32::MAX, &logits, &[0, 1, 2, 3]);
}

#[test]
fn a_token_that_is_forbidden_stays_so() {
    let forbid = |ids: &[u32]| ids.iter().map(|&id| (id, f32::NEG_INFINITY)).collect::<Vec<_>>();
    // A negative penalty would lift it; it does not lift what is forbidden.
    check_support(|p| (p.logit_bias, p.presence_penalty) = (forbid(&[0]), -1e30), &[1.0, 1.0], &[1]);
    check_support(|p| (p.logit_bias, p.repeat_penalty) = (forbid(&[0]), 1e-30), &[1.0, 1.0], &[1]);
    let mut sampler = Sampler::new(params(|p| p.logit_bias = forbid(&[0, 1]))).unwrap();
    let error = sampler.sample(&[1.0, 2.0], &[], &[]).unwrap_err().to_string();
    assert!(error.contains("logit_bias") && error.contains("every token"), "{error}");
}

#[test]
fn logits_that_are_not_numbers_are_an_error() {
    let mut sampler = Sampler::new(SamplingParams::greedy()).unwrap();
    for bad in [vec![0.0, f32::NAN], vec![f32::INFINITY, 0.0], vec![f32::NEG_INFINITY; 2], vec![]] {
        assert!(matches!(sampler.sample(&bad, &[1], &[]), Err(Error::BadLogits { position: 1, .. })));
    }
    for (bad, says) in [(f32::NAN, "NaN"), (f32::INFINITY, "+inf"), (f32::NEG_INFINITY, "-inf")] {
        let error = sampler.sample(&[0.0, bad, 1.0], &[1, 2], &[3]).unwrap_err().to_string();
        assert!(error.contains("token 3 of the sequence") && error.contains(says), "{error}");
    }
}

#[test]
fn logprobs_are_those_of_the_model() {
    let logits: Vec<f32> = [0.1f32, 0.6, 0.3].iter().map(|p| p.ln()).collect();
    let mut sampler = Sampler::new(SamplingParams { logprobs: Some(2), ..Default::default() }).unwrap();
    let sampled = sampler.sample(&logits, &[], &[]).unwrap();
    assert_eq!(sampled.top.iter().map(|t| t.id).collect::<Vec<_>>(), [1, 2]);
    assert!((sampled.logprob.unwrap() - 0.6f32.ln()).abs() < 1e-6);
}

/// Any finite logits, most of them of a sane size.
fn any_logits() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        8 => -30.0f32..30.0,
        1 => prop::num::f32::NORMAL | prop::num::f32::ZERO | prop::num::f32::SUBNORMAL,
    ];
    prop::collection::vec(logit, 1..200)
}

fn any_params() -> impl Strategy<Value = SamplingParams> {
    let temperature = prop_oneof![Just(0.0f32), 1e-4f32..5.0, Just(f32::MAX)];
    let number = prop::num::f32::NORMAL | prop::num::f32::ZERO;
    let repeat = prop_oneof![Just(1.0f32), 0.5f32..2.0, prop::num::f32::POSITIVE];
    let bias = prop::collection::vec((0u32..250, prop_oneof![number, Just(f32::NEG_INFINITY)]), 0..4);
    (temperature, any::<usize>(), 1e-45f32..=1.0, 0.0f32..=1.0, any::<u64>(), repeat, number, number, bias)
        .prop_map(
            |(
                temperature,
                top_k,
                top_p,
                min_p,
                seed,
                repeat_penalty,
                frequency_penalty,
                presence_penalty,
                logit_bias,
            )| {
                SamplingParams {
                    temperature,
                    top_k: if seed % 2 == 0 { top_k % 250 } else { top_k },
                    top_p,
                    min_p,
                    seed,
                    repeat_penalty,
                    frequency_penalty,
                    presence_penalty,
                    logit_bias,
                    ..Default::default()
                }
            },
        )
}

proptest! {
    /// Whatever is allowed gives a token that the vocabulary has and nobody forbade, and the same one again.
    #[test]
    fn any_parameters_give_a_token(
        logits in any_logits(),
        params in any_params(),
        generated in prop::collection::vec(0u32..250, 0..20),
    ) {
        prop_assume!(params.check().is_ok());
        let forbidden = |id: u32| params.logit_bias.iter().any(|&(i, b)| i == id && b == f32::NEG_INFINITY);
        let allowed = |id: usize| id < logits.len() && !forbidden(id as u32);
        let mut sampler = Sampler::new(params.clone()).unwrap();
        match sampler.sample(&logits, &[0, 1], &generated) {
            Ok(sampled) => {
                prop_assert!(allowed(sampled.id as usize), "{}", sampled.id);
                // A sampler that was used before, and a new one.
                prop_assert_eq!(&sampler.sample(&logits, &[0, 1], &generated).unwrap(), &sampled);
                let again = Sampler::new(params.clone()).unwrap().sample(&logits, &[0, 1], &generated).unwrap();
                prop_assert_eq!(again, sampled);
            }
            Err(Error::BadOption { option: "logit_bias", .. }) => {
                prop_assert!(!(0..logits.len()).any(allowed));
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    /// What a filter keeps is a beginning of the tokens in the order of their logits: a token that is drawn is never
    /// less likely than the filters allow.
    #[test]
    fn filters_leave_the_likeliest(
        logits in prop::collection::vec(-30.0f32..30.0, 1..100),
        top_k in 1usize..100, min_p in 0.0f32..=1.0, seed: u64,
    ) {
        let mut sampler = Sampler::new(params(|p| (p.top_k, p.min_p, p.seed) = (top_k, min_p, seed))).unwrap();
        let id = sampler.sample(&logits, &[], &[]).unwrap().id as usize;
        let larger = logits.iter().filter(|&&l| l > logits[id]).count();
        prop_assert!(larger < top_k, "{} are likelier than what was drawn", larger);
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        prop_assert!((logits[id] - max).exp() >= min_p * 0.999);
    }
}
