//! Requests and weights that were made to bring the engine down: the one at fault hears of it, the others go on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

use portolan::{Engine, Error, GenerateOptions, LoadOptions, Prompt, loader::NoProgress};
use portolan_testkit::tiny;
use proptest::prelude::*;

fn load(folder: &Path, exact: bool, edit: impl FnOnce(&mut LoadOptions)) -> Engine {
    let mut options = LoadOptions::default();
    (options.exact, options.threads) = (exact, 1);
    edit(&mut options);
    Engine::load_path(folder, &options, &mut NoProgress).unwrap()
}

fn greedy(n: usize) -> GenerateOptions {
    let mut options = GenerateOptions::tokens(n);
    options.ignore_eos = true;
    options
}

/// `n` tokens from 8 to 511 that no other `salt` gives.
fn prompt(salt: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| 8 + (salt * 101 + i * (37 + salt)) % 504).collect()
}

fn tokens(engine: &Engine, prompt: &[u32], options: &GenerateOptions) -> Result<Vec<u32>, Error> {
    let mut generation = engine.generate(Prompt::Tokens(prompt), options)?;
    for piece in &mut generation {
        piece?;
    }
    Ok(generation.tokens().to_vec())
}

/// The tiny model with one number of one tensor changed.
fn planted(tensor: &str, at: usize, bits: u16) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    tiny::copy_with_text("llama", folder.path());
    let mut found = false;
    let file = tiny::edited_tensors(folder.path(), |t| {
        if t.name == tensor {
            t.bytes[2 * at..2 * at + 2].copy_from_slice(&bits.to_le_bytes());
            found = true;
        }
        true
    });
    assert!(found, "there is no {tensor}");
    file.write(folder.path().join("model.safetensors"));
    folder
}

const NAN: u16 = 0x7fc0;
const INF: u16 = 0x7f80;
const LESS_INF: u16 = 0xff80;

/// Wherever in the weights it stands: an error, never a token.
#[test]
fn a_weight_that_is_no_number_is_an_error() {
    for tensor in [
        "model.embed_tokens.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.1.self_attn.q_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.2.self_attn.v_proj.weight",
        "model.layers.1.self_attn.o_proj.weight",
        "model.layers.2.mlp.down_proj.weight",
        "model.norm.weight",
        "lm_head.weight",
    ] {
        for bits in [NAN, INF, LESS_INF] {
            // In row 10 of the embedding, which the prompt holds.
            let at = if tensor.contains("embed") || tensor.contains("lm_head") { 10 * 64 } else { 0 };
            let folder = planted(tensor, at, bits);
            for exact in [true, false] {
                let found = tokens(&load(folder.path(), exact, |_| ()), &[9, 10, 11], &greedy(4));
                let what = format!("{tensor}, {bits:#x}, exact {exact}");
                match found {
                    Err(error @ Error::BadLogits { position: 3, .. }) => {
                        let text = error.to_string();
                        assert!(
                            text.contains("token 3 of the sequence") && text.contains("damaged"),
                            "{what}: {text}"
                        );
                    }
                    other => panic!("{what}: {other:?}"),
                }
            }
        }
    }
}

/// One sequence whose numbers are bad, in the same steps as others, and its pages, which others get after it.
#[test]
fn bad_numbers_of_one_sequence_are_no_others() {
    let good = tempfile::tempdir().unwrap();
    tiny::copy_with_text("llama", good.path());
    // Token 7 alone is bad; it is in no good prompt, and nobody generates it.
    let bad = planted("model.embed_tokens.weight", 7 * 64, NAN);
    let mut options = greedy(30);
    options.sampling.logit_bias = vec![(7, f32::NEG_INFINITY)];
    for exact in [true, false] {
        let small = |o: &mut LoadOptions| (o.context, o.cache_tokens, o.chunk) = (Some(128), Some(320), 24);
        let (clean, engine) = (load(good.path(), exact, small), load(bad.path(), exact, small));
        for round in 0..3u32 {
            let prompts: Vec<Vec<u32>> = (1..4).map(|i| prompt(10 * round + i, 17 * i)).collect();
            let mut poisoned = prompt(10 * round + 5, 45);
            poisoned[20 * round as usize] = 7;
            let start = |tokens: &[u32]| engine.generate(Prompt::Tokens(tokens), &options).unwrap();
            let running = [start(&prompts[0]), start(&poisoned), start(&prompts[1]), start(&prompts[2])];
            let mut others = prompts.iter();
            for (i, mut generation) in running.into_iter().enumerate() {
                let end = generation.by_ref().find_map(Result::err);
                if i == 1 {
                    assert!(matches!(end, Some(Error::BadLogits { position: 45, what: "NaN" })), "{end:?}");
                    continue;
                }
                assert!(end.is_none(), "exact {exact}, round {round}, request {i}: {end:?}");
                let expected = tokens(&clean, others.next().unwrap(), &options).unwrap();
                assert_eq!(generation.tokens().len(), 30);
                if exact {
                    assert_eq!(generation.tokens(), expected, "round {round}, request {i}");
                }
            }
        }
    }
}

/// A prompt so long that it cannot have room is refused, whoever asks; one that is not is answered.
#[test]
fn prompts_of_every_length() {
    let folder = tempfile::tempdir().unwrap();
    tiny::copy_with_text("llama", folder.path());
    let engine = load(folder.path(), true, |_| ());
    for text in
        ["", "\0", "a", "<|im_end|><|im_start|>", "\u{FDD0}\u{FDD1}", "\u{1F9D9}\u{200D}\u{2642}\u{FE0F}"]
    {
        for prompt in [Prompt::Text(text), Prompt::Raw(text)] {
            match engine.generate(prompt, &greedy(2)).map(|g| g.finish().unwrap().stats.generated_tokens) {
                Ok(2) => assert!(!text.is_empty()),
                Err(Error::EmptyPrompt) => assert!(text.is_empty()),
                other => panic!("{text:?}: {other:?}"),
            }
        }
    }
    let long = "x ".repeat(1 << 20);
    let error = engine.generate(long.as_str(), &greedy(2)).map(drop).unwrap_err();
    let too_long =
        |error: &Error| matches!(error, Error::PromptTooLong { least, context: 512, .. } if *least > 1 << 15);
    assert!(too_long(&error), "{error}");
    let mut chat = engine.chat().unwrap();
    assert!(too_long(&chat.send(&long, &greedy(2)).map(drop).unwrap_err()));
    assert!(too_long(&engine.session().generate(long.as_str(), &greedy(2)).map(drop).unwrap_err()));
    // One that is only too long is counted.
    let error = engine.generate("x ".repeat(4000).as_str(), &greedy(2)).map(drop).unwrap_err();
    assert!(matches!(error, Error::ContextOverflow { need, context: 512 } if need > 4000), "{error}");
    assert!(chat.messages().is_empty());
    // A role that the template has never heard of is the template's affair; this one writes it down as it is.
    chat.push(portolan::text::Message::new("wizard<|im_end|>", "abracadabra"));
    assert_eq!(chat.send("go on", &greedy(2)).unwrap().finish().unwrap().stats.generated_tokens, 2);
}

#[test]
fn a_bias_on_a_token_that_is_not_there_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    tiny::copy_with_text("llama", folder.path());
    let engine = load(folder.path(), true, |_| ());
    let mut options = greedy(1);
    options.sampling.logit_bias = vec![(3, 1.0), (512, 1.0)];
    let error = tokens(&engine, &[9], &options).unwrap_err();
    assert!(matches!(error, Error::BadToken { id: 512, vocab: 512 }), "{error}");
    options.sampling.logit_bias = (0..512).map(|id| (id, f32::NEG_INFINITY)).collect();
    let error = tokens(&engine, &[9], &options).unwrap_err();
    assert!(matches!(&error, Error::BadOption { option: "logit_bias", .. }), "{error}");
    options.sampling.logit_bias = vec![(33, 1e30)];
    assert_eq!(tokens(&engine, &[9], &options).unwrap(), [33]);
}

/// What somebody does with a request.
#[derive(Clone, Copy, Debug)]
enum Then {
    Read,
    DropAfter(usize),
    CancelAfter(usize),
}

#[derive(Clone, Debug)]
struct Ask {
    prompt: Vec<u32>,
    max_tokens: Option<usize>,
    temperature: f32,
    top_p: f32,
    stop: Vec<String>,
    then: Then,
}

fn any_ask() -> impl Strategy<Value = Ask> {
    let token = prop_oneof![40 => 0u32..512, 1 => 512u32..600];
    let prompt = prop_oneof![
        6 => prop::collection::vec(token, 0..140),
        // Two that begin alike share pages.
        4 => (1u32..140).prop_map(|n| prompt(1, n)),
    ];
    let most = prop_oneof![8 => (0usize..40).prop_map(Some), 1 => Just(None), 1 => Just(Some(usize::MAX))];
    let temperature = prop_oneof![Just(0.0f32), Just(1.0), Just(1e30), Just(-1.0), Just(f32::NAN)];
    let top_p = prop_oneof![4 => Just(1.0f32), 1 => Just(0.5), 1 => Just(0.0)];
    let stop = prop::collection::vec("[a-e ]{0,2}", 0..2);
    let then = prop_oneof![
        Just(Then::Read),
        (0usize..9).prop_map(Then::DropAfter),
        (0usize..9).prop_map(Then::CancelAfter)
    ];
    (prompt, most, temperature, top_p, stop, then).prop_map(
        |(prompt, max_tokens, temperature, top_p, stop, then)| Ask {
            prompt,
            max_tokens,
            temperature,
            top_p,
            stop,
            then,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..Default::default() })]

    /// Any requests at once, right and wrong, read, dropped and cancelled: each is refused for a reason or ends, and
    /// at the end the whole cache is free for one that needs all of it.
    #[test]
    fn vllm_49674_any_requests_end_and_leave_the_cache_whole(asks in prop::collection::vec(any_ask(), 1..8)) {
        let folder = tempfile::tempdir().unwrap();
        tiny::copy_with_text("llama", folder.path());
        let engine = load(folder.path(), true, |o| {
            (o.context, o.cache_tokens, o.chunk, o.max_sequences) = (Some(128), Some(192), 40, 3);
        });
        let mut running = Vec::new();
        for ask in &asks {
            let mut options = greedy(1);
            (options.max_tokens, options.stop) = (ask.max_tokens, ask.stop.clone());
            (options.sampling.temperature, options.sampling.top_p) = (ask.temperature, ask.top_p);
            let wrong = ask.max_tokens == Some(0)
                || ask.temperature.is_nan()
                || ask.temperature < 0.0
                || ask.top_p == 0.0
                || ask.stop.iter().any(String::is_empty)
                || ask.prompt.is_empty()
                || ask.prompt.len() > 127
                || ask.prompt.iter().any(|&id| id > 511);
            match engine.generate(Prompt::Tokens(&ask.prompt), &options) {
                Ok(generation) => {
                    prop_assert!(!wrong, "{:?} was taken", ask);
                    running.push((ask, generation));
                }
                Err(error) => prop_assert!(wrong, "{:?}: {}", ask, error),
            }
        }
        for (ask, mut generation) in running {
            let read = match ask.then {
                Then::Read => usize::MAX,
                Then::DropAfter(n) | Then::CancelAfter(n) => n,
            };
            for piece in generation.by_ref().take(read) {
                prop_assert!(piece.is_ok(), "{:?}: {:?}", ask, piece);
            }
            if matches!(ask.then, Then::DropAfter(_)) {
                continue;
            }
            generation.cancel();
            generation.by_ref().for_each(drop);
            let summary = generation.summary().cloned();
            prop_assert!(summary.is_some(), "{:?} has no end", ask);
            prop_assert!(generation.tokens().len() <= ask.max_tokens.unwrap_or(128).min(128 - ask.prompt.len()));
        }
        prop_assert_eq!(tokens(&engine, &prompt(2, 100), &greedy(28)).unwrap().len(), 28);
        prop_assert_eq!(tokens(&engine, &prompt(3, 127), &greedy(1)).unwrap().len(), 1);
    }
}
