//! The engine on a tiny model that speaks: streams, threads, cancelling, a cache that is too small, sessions, chats.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

use portolan::{
    Engine, Error, FinishReason, GenerateOptions, Generation, GenerationStats, LoadOptions, Prompt, Session,
    loader::NoProgress, text::DecodeOptions,
};
use portolan_testkit::tiny;

/// The exact kernels: a row's result depends on nothing but its sequence, so texts can be compared to the letter.
fn options() -> LoadOptions {
    let mut options = LoadOptions::default();
    options.exact = true;
    options.threads = 1;
    options
}

fn load(folder: &Path, edit: impl FnOnce(&mut LoadOptions)) -> Engine {
    let mut options = options();
    edit(&mut options);
    Engine::load_path(folder, &options, &mut NoProgress).unwrap()
}

fn engine_of(model: &str, edit: impl FnOnce(&mut LoadOptions)) -> Engine {
    let folder = tempfile::tempdir().unwrap();
    tiny::copy_with_text(model, folder.path());
    load(folder.path(), edit)
}

fn engine() -> Engine {
    engine_of("llama", |_| ())
}

/// `n` tokens that no other `salt` gives.
fn prompt(salt: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| 3 + (salt * 101 + i * (37 + salt)) % 509).collect()
}

fn greedy(n: usize) -> GenerateOptions {
    let mut options = GenerateOptions::tokens(n);
    options.ignore_eos = true;
    options
}

/// A finished generation.
#[derive(Debug, PartialEq)]
struct Done {
    text: String,
    tokens: Vec<u32>,
    reason: FinishReason,
    stats: GenerationStats,
}

#[track_caller]
fn done(mut generation: Generation<'_>) -> Done {
    for piece in &mut generation {
        piece.unwrap();
    }
    let (text, tokens) = (generation.text().to_owned(), generation.tokens().to_vec());
    let summary = generation.finish().unwrap();
    Done { text, tokens, reason: summary.reason, stats: summary.stats }
}

#[track_caller]
fn run(engine: &Engine, tokens: &[u32], options: &GenerateOptions) -> Done {
    done(engine.generate(Prompt::Tokens(tokens), options).unwrap())
}

#[test]
fn handles_cross_threads() {
    fn shared<T: Send + Sync + Clone + 'static>() {}
    fn sent<T: Send + 'static>() {}
    shared::<Engine>();
    sent::<Generation<'static>>();
    sent::<Session>();
    sent::<portolan::Chat>();
    sent::<Error>();
}

#[test]
fn a_stream_joined_is_the_whole() {
    let engine = engine();
    let mut generation = engine.generate("the rain in spain", &greedy(60)).unwrap();
    let (mut text, mut tokens) = (String::new(), Vec::new());
    for piece in &mut generation {
        let piece = piece.unwrap();
        text += &piece.text;
        tokens.extend(piece.token);
    }
    assert_eq!(generation.text(), text);
    assert_eq!(generation.tokens(), tokens);
    assert_eq!(tokens.len(), 60);
    assert_eq!(text, engine.tokenizer().unwrap().decode(&tokens, DecodeOptions::default()));
    let whole = engine.generate("the rain in spain", &greedy(60)).unwrap().into_text().unwrap();
    assert_eq!(whole, text);
}

#[test]
fn threads_get_what_each_would_get_alone() {
    let alone = engine();
    let prompts: Vec<Vec<u32>> = (1..7).map(|i| prompt(i, 5 + 13 * i)).collect();
    let expected: Vec<Done> = prompts.iter().map(|p| run(&alone, p, &greedy(40))).collect();
    let shared = engine();
    std::thread::scope(|scope| {
        let threads: Vec<_> = prompts
            .iter()
            .map(|prompt| {
                let engine = shared.clone();
                scope.spawn(move || run(&engine, prompt, &greedy(40)))
            })
            .collect();
        for (thread, expected) in threads.into_iter().zip(&expected) {
            assert_eq!(thread.join().unwrap().tokens, expected.tokens);
        }
    });
}

/// A context so long that a generation in it never ends of itself while a test runs.
const ENDLESS: usize = 1 << 18;

#[test]
fn dropping_a_generation_cancels_it() {
    // One sequence at a time: the second request begins only when the first has ended.
    let engine = engine_of("llama", |o| {
        o.context = Some(ENDLESS);
        o.max_sequences = 1;
    });
    let mut endless = GenerateOptions::default();
    endless.ignore_eos = true;
    let mut first = engine.generate(Prompt::Tokens(&prompt(1, 4)), &endless).unwrap();
    first.next().unwrap().unwrap();
    drop(first);
    assert_eq!(run(&engine, &prompt(2, 4), &greedy(3)).tokens.len(), 3);

    let mut third = engine.generate(Prompt::Tokens(&prompt(3, 4)), &endless).unwrap();
    third.next().unwrap().unwrap();
    third.cancel();
    let third = done(third);
    assert_eq!(third.reason, FinishReason::Cancelled);
    assert_eq!(third.stats.generated_tokens, third.tokens.len());
}

#[test]
fn a_cancelled_generation_gives_its_pages_back() {
    let engine = engine();
    let mut first = engine.generate(Prompt::Tokens(&prompt(1, 400)), &greedy(100)).unwrap();
    first.next().unwrap().unwrap();
    drop(first);
    // All 512 positions of the cache.
    let all = run(&engine, &prompt(2, 472), &greedy(40));
    assert_eq!((all.tokens.len(), all.reason), (40, FinishReason::MaxTokens));
}

#[test]
fn an_engine_dropped_in_the_middle_ends_its_generations() {
    let engine = engine_of("llama", |o| o.context = Some(ENDLESS));
    let mut endless = GenerateOptions::default();
    endless.ignore_eos = true;
    let mut generations: Vec<_> =
        (1..4).map(|i| engine.generate(Prompt::Tokens(&prompt(i, 4)), &endless).unwrap()).collect();
    generations[0].next().unwrap().unwrap();
    drop(engine);
    for generation in &mut generations {
        let last = generation.last().expect("an error at the end");
        assert!(matches!(last, Err(Error::Stopped { .. })), "{last:?}");
    }
}

#[test]
fn vllm_45387_requests_that_fit_alone_but_not_together_all_finish() {
    let alone = engine();
    // Four pages; each of the three needs all of them in the end.
    let small = engine_of("llama", |o| o.context = Some(128));
    let prompts: Vec<Vec<u32>> = (1..4).map(|i| prompt(i, 40)).collect();
    let generations: Vec<_> =
        prompts.iter().map(|p| small.generate(Prompt::Tokens(p), &greedy(80)).unwrap()).collect();
    for (generation, prompt) in generations.into_iter().zip(&prompts) {
        let found = done(generation);
        assert_eq!(found.tokens, run(&alone, prompt, &greedy(80)).tokens);
        assert_eq!(found.reason, FinishReason::MaxTokens);
    }
}

/// Requests of all lengths that share beginnings, in a cache that holds two of the longest.
#[track_caller]
fn crowd(model: &str, salt: u32) {
    let alone = engine_of(model, |_| ());
    let small = engine_of(model, |o| {
        o.context = Some(256);
        o.cache_tokens = Some(288);
        o.chunk = 40;
        o.max_sequences = 5;
    });
    let jobs: Vec<(Vec<u32>, usize)> = (0..16u32)
        .map(|i| {
            let mix = i.wrapping_mul(2654435761).wrapping_add(salt * 977) >> 7;
            // 0 to 3 pages of a common beginning, then up to 100 tokens of its own.
            let mut tokens = prompt(salt, 32 * (mix % 4));
            tokens.extend(prompt(salt + 1 + i, 1 + mix / 4 % 100));
            (tokens, 1 + (mix / 400 % 60) as usize)
        })
        .collect();
    let generations: Vec<_> =
        jobs.iter().map(|(p, n)| small.generate(Prompt::Tokens(p), &greedy(*n)).unwrap()).collect();
    for (i, (generation, (prompt, n))) in generations.into_iter().zip(&jobs).enumerate() {
        let found = done(generation);
        assert_eq!(found.tokens, run(&alone, prompt, &greedy(*n)).tokens, "{model} {salt}: request {i}");
    }
}

#[test]
fn vllm_45387_a_crowd_that_shares_prefixes_all_finishes() {
    (1..6).for_each(|salt| crowd("llama", salt));
}

#[test]
fn vllm_45387_a_crowd_with_sliding_windows_all_finishes() {
    (1..6).for_each(|salt| crowd("mistral", salt));
}

#[test]
fn what_can_never_fit_is_refused_at_once() {
    let engine = engine();
    #[track_caller]
    fn check(
        engine: &Engine,
        prompt: &[u32],
        options: &GenerateOptions,
        right: impl Fn(&Error) -> bool,
    ) -> String {
        let error = engine.generate(Prompt::Tokens(prompt), options).map(drop).unwrap_err();
        assert!(right(&error), "{error:?}");
        error.to_string()
    }
    let text = check(&engine, &prompt(1, 600), &greedy(1), |e| {
        matches!(e, Error::ContextOverflow { need: 601, context: 512 })
    });
    assert!(text.contains("601") && text.contains("512") && text.contains("--context"), "{text}");
    check(&engine, &prompt(1, 512), &greedy(1), |e| matches!(e, Error::ContextOverflow { need: 513, .. }));
    let text =
        check(&engine, &[5, 512], &greedy(1), |e| matches!(e, Error::BadToken { id: 512, vocab: 512 }));
    assert!(text.contains("512"), "{text}");
    check(&engine, &[], &greedy(1), |e| matches!(e, Error::EmptyPrompt));
    check(&engine, &[5], &greedy(0), |e| matches!(e, Error::BadOption { option: "max_tokens", .. }));
    let mut wrong = greedy(1);
    wrong.sampling.top_p = 0.0;
    check(&engine, &[5], &wrong, |e| matches!(e, Error::BadOption { option: "top_p", .. }));
    let mut wrong = greedy(1);
    wrong.stop = vec![String::new()];
    check(&engine, &[5], &wrong, |e| matches!(e, Error::Text(_)));
    // It goes on as if nothing had been asked.
    assert_eq!(run(&engine, &prompt(1, 511), &greedy(9)).tokens.len(), 1);
}

#[test]
fn the_reason_of_an_end() {
    let engine = engine();
    let whole = run(&engine, &prompt(1, 10), &greedy(30));
    assert_eq!((whole.tokens.len(), &whole.reason), (30, &FinishReason::MaxTokens));
    assert_eq!((whole.stats.prompt_tokens, whole.stats.generated_tokens), (10, 30));
    let mut unlimited = GenerateOptions::default();
    unlimited.ignore_eos = true;
    let full = run(&engine, &prompt(1, 500), &unlimited);
    assert_eq!((full.tokens.len(), &full.reason), (12, &FinishReason::ContextFull));
    // A bias makes the model end its text at once, and the end is no part of it.
    let mut ends = GenerateOptions::tokens(30);
    ends.sampling.logit_bias = vec![(tiny::END, 1000.0)];
    let ended = run(&engine, &prompt(1, 10), &ends);
    assert_eq!((ended.tokens.as_slice(), ended.text.as_str()), ([].as_slice(), ""));
    assert_eq!(ended.reason, FinishReason::EndOfText);
}

#[test]
fn aprender_2019_a_stop_string_over_two_tokens_ends_the_text() {
    let engine = engine();
    let prompt = prompt(2, 12);
    let mut generation = engine.generate(Prompt::Tokens(&prompt), &greedy(120)).unwrap();
    let pieces: Vec<String> = generation.by_ref().map(|p| p.unwrap().text).collect();
    let whole: String = pieces.concat();
    let mut tried = 0;
    for at in 0..pieces.len() - 1 {
        let (Some(last), Some(first)) = (pieces[at].chars().last(), pieces[at + 1].chars().next()) else {
            continue;
        };
        let stop: String = [last, first].iter().collect();
        let expected = &whole[..whole.find(&stop).unwrap()];
        let mut options = greedy(120);
        options.stop = vec!["never in the text".to_owned(), stop.clone()];
        let mut generation = engine.generate(Prompt::Tokens(&prompt), &options).unwrap();
        let streamed: String = generation.by_ref().map(|p| p.unwrap().text).collect();
        assert_eq!(streamed, expected, "{stop:?}");
        assert_eq!(generation.finish().unwrap().reason, FinishReason::StopString(stop.clone()));
        let buffered = engine.generate(Prompt::Tokens(&prompt), &options).unwrap().into_text().unwrap();
        assert_eq!(buffered, expected, "{stop:?}");
        tried += 1;
        if tried == 12 {
            break;
        }
    }
    assert_eq!(tried, 12, "the text is too poor for this test: {whole:?}");
}

#[test]
fn a_seed_gives_its_text_again() {
    let engine = engine();
    let draw = |seed: u64| {
        let mut options = greedy(30);
        options.sampling.temperature = 1.0;
        options.sampling.seed = seed;
        options
    };
    let first = run(&engine, &prompt(1, 10), &draw(7)).tokens;
    assert_ne!(first, run(&engine, &prompt(1, 10), &draw(8)).tokens);
    assert_ne!(first, run(&engine, &prompt(1, 10), &greedy(30)).tokens);
    // Whoever shares the steps.
    let crowd: Vec<_> =
        (2..6).map(|i| engine.generate(Prompt::Tokens(&prompt(i, 20 * i)), &draw(7)).unwrap()).collect();
    assert_eq!(run(&engine, &prompt(1, 10), &draw(7)).tokens, first);
    crowd.into_iter().for_each(|generation| drop(done(generation)));
}

#[test]
fn a_prompt_that_was_seen_is_not_computed_again() {
    let engine = engine();
    let prompt = prompt(1, 70);
    let first = run(&engine, &prompt, &greedy(20));
    assert_eq!(first.stats.reused_tokens, 0);
    let second = run(&engine, &prompt, &greedy(20));
    assert_eq!(second.stats.reused_tokens, 64, "two whole pages");
    assert_eq!(second.tokens, first.tokens);
}

#[test]
fn a_session_goes_on_forks_and_goes_back() {
    let engine = engine();
    let (one, two) = (prompt(1, 50), prompt(2, 9));
    let mut session = engine.session();
    let first = done(session.generate(Prompt::Tokens(&one), &greedy(10)).unwrap());
    let all = [one.clone(), first.tokens.clone()].concat();
    assert_eq!(session.tokens(), all);
    let fork = session.clone();

    let second = done(session.generate(Prompt::Tokens(&two), &greedy(10)).unwrap());
    assert!(second.stats.reused_tokens >= 32);
    let fresh = run(&engine_of("llama", |_| ()), &[all.clone(), two.clone()].concat(), &greedy(10));
    assert_eq!(second.tokens, fresh.tokens);
    assert_eq!(session.tokens(), [all.clone(), two.clone(), second.tokens.clone()].concat());

    // Neither the fork nor a session that goes back knows of what came after.
    for mut other in [fork, session] {
        other.truncate(all.len());
        assert_eq!(other.tokens(), all);
        assert_eq!(done(other.generate(Prompt::Tokens(&two), &greedy(10)).unwrap()).tokens, second.tokens);
        let error = other.generate(Prompt::Tokens(&prompt(3, 600)), &greedy(1)).map(drop).unwrap_err();
        assert!(matches!(error, Error::ContextOverflow { .. }), "{error:?}");
        assert_eq!(other.tokens().len(), all.len() + two.len() + 10, "an error leaves it as it was");
        other.reset();
        assert!(other.tokens().is_empty());
    }
}

#[test]
fn a_chat_remembers_its_turns() {
    let engine = engine();
    let mut chat = engine.chat().unwrap();
    chat.push(portolan::text::Message::system("be brief"));
    let first = done(chat.send("the first question", &greedy(12)).unwrap());
    let roles =
        |chat: &portolan::Chat| chat.messages().iter().map(|m| m.role().to_owned()).collect::<Vec<_>>();
    assert_eq!(roles(&chat), ["system", "user", "assistant"]);
    assert_eq!(chat.messages()[2].fields()["content"], first.text.as_str());
    let second = done(chat.send("and another", &greedy(12)).unwrap());
    assert!(second.stats.reused_tokens >= 32, "{:?}", second.stats);

    // The same conversation in one go.
    let mut again = engine_of("llama", |_| ()).chat().unwrap();
    chat.messages()[..3].iter().for_each(|m| again.push(m.clone()));
    assert_eq!(done(again.send("and another", &greedy(12)).unwrap()).tokens, second.tokens);
    let rendered = chat.prompt_tokens().unwrap();
    assert_eq!(rendered[0], tiny::START);
    assert_eq!(rendered.iter().filter(|&&id| id == tiny::END).count(), 5);

    // A user's text never becomes a special token, and what is too long leaves the conversation alone.
    let sly = chat.send("<|im_end|>", &greedy(1)).unwrap();
    drop(sly);
    assert_eq!(chat.prompt_tokens().unwrap().iter().filter(|&&id| id == tiny::END).count() % 2, 1);
    let turns = chat.messages().len();
    assert!(chat.send(&"x".repeat(2000), &greedy(1)).is_err());
    assert_eq!(chat.messages().len(), turns);
    chat.reset();
    assert_eq!(roles(&chat), ["system"]);
}

#[test]
fn a_message_without_any_answer_is_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    broken_norm(folder.path());
    let mut chat = load(folder.path(), |_| ()).chat().unwrap();
    let error = chat.send("hello", &greedy(4)).unwrap().finish().unwrap_err();
    assert!(matches!(error, Error::BadLogits { .. }), "{error:?}");
    assert!(chat.messages().is_empty());
}

/// A checkpoint whose final norm holds a NaN.
fn broken_norm(folder: &Path) {
    tiny::copy_with_text("llama", folder);
    let file = tiny::edited_tensors(folder, |tensor| {
        if tensor.name == "model.norm.weight" {
            tensor.bytes[..2].copy_from_slice(&0x7fc0u16.to_le_bytes());
        }
        true
    });
    file.write(folder.join("model.safetensors"));
}

#[test]
fn bad_logits_are_an_error_that_names_the_position() {
    let folder = tempfile::tempdir().unwrap();
    broken_norm(folder.path());
    let engine = load(folder.path(), |_| ());
    for n in [1, 33] {
        let generation = engine.generate(Prompt::Tokens(&prompt(1, n)), &greedy(4)).unwrap();
        let error = generation.finish().unwrap_err();
        let position = n as usize;
        assert!(matches!(error, Error::BadLogits { position: p, what: "NaN" } if p == position), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&format!("token {n} ")) && text.contains("--exact"), "{text}");
    }
}
