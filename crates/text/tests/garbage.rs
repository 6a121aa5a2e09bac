//! Tokenizers and conversations that hold garbage: an error that names the file or the key, or a tokenizer that works.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::small;
use portolan_text::{
    ChatInput, ChatTemplate, DecodeOptions, EncodeOptions, GgufVocab, Message, TextError, Tokenizer,
};
use serde_json::{Value, json};

const TEXTS: [&str; 9] =
    ["", "ab", " a  b ", "\0", "é🦙\u{301}", "<s>ab</s>", "\u{FDD0}", "<0xC3>", "\r\n\t\u{2028}"];

/// Encodes and decodes everything, in every way.
fn use_it(tokenizer: &Tokenizer) {
    for text in TEXTS {
        for (add_special, parse_special) in [(false, false), (true, false), (false, true), (true, true)] {
            if let Ok(ids) = tokenizer.encode(text, EncodeOptions { add_special, parse_special }) {
                for skip_special in [true, false] {
                    tokenizer.decode(&ids, DecodeOptions { skip_special, continues: false });
                }
            }
        }
    }
    tokenizer.decode(&[0, 1, 99, u32::MAX], DecodeOptions::default());
}

/// All places in a JSON value.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
    match value {
        Value::Object(map) => map.iter().for_each(|(k, v)| places(v, &format!("{at}/{}", escaped(k)), found)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, v)| places(v, &format!("{at}/{i}"), found));
        }
        _ => {}
    }
}

fn odd_values() -> Vec<Value> {
    let numbers =
        [json!(0), json!(-1), json!(1), json!(7), json!(0.5), json!(1e300), json!(u32::MAX), json!(u64::MAX)];
    let others = [
        json!(null),
        json!(true),
        json!(""),
        json!("x"),
        json!("(("),
        json!("é🦙"),
        json!([]),
        json!([[]]),
        json!({}),
        json!([1, "x"]),
    ];
    numbers.into_iter().chain(others).collect()
}

/// Every value of a tokenizer.json in turn replaced by every odd one, or taken out.
#[test]
fn no_tokenizer_json_panics() {
    let good = small();
    let config = json!({"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "LlamaTokenizer", "add_bos_token": true});
    let mut all = Vec::new();
    places(&good, "", &mut all);
    // Of the vocabulary and the merges a few are as good as all.
    let few = |at: &String| !(at.starts_with("/model/vocab/") && at.len() > 15);
    all.retain(few);
    let (mut works, mut tried, mut wrong) = (0, 0, Vec::new());
    for at in &all {
        for value in odd_values() {
            let mut json = good.clone();
            *json.pointer_mut(at).unwrap() = value.clone();
            tried += 1;
            let text = json.to_string();
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                Tokenizer::from_json(text.as_bytes(), &config, &[]).map(|tokenizer| use_it(&tokenizer))
            }));
            match outcome {
                Err(_) => wrong.push(format!("{at} = {value}: a panic")),
                Ok(Ok(())) => works += 1,
                Ok(Err(error)) if error.to_string().is_empty() => {
                    wrong.push(format!("{at} = {value}: no word"))
                }
                Ok(Err(_)) => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(works > tried / 20 && works < tried, "{works} of {tried} work: the test tests nothing");
}

/// Other parts that a tokenizer.json may have, each with what it needs missing or wrong.
#[test]
fn no_part_of_a_tokenizer_panics() {
    let parts = [
        ("/normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"})),
        ("/normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "/////w=="})),
        ("/normalizer", json!({"type": "Precompiled", "precompiled_charsmap": ""})),
        ("/normalizer", json!({"type": "Replace", "pattern": {"Regex": "(a+)+$("}, "content": ""})),
        ("/normalizer", json!({"type": "Replace", "pattern": {"String": ""}, "content": "x"})),
        ("/normalizer", json!({"type": "Sequence", "normalizers": []})),
        (
            "/normalizer",
            json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true}),
        ),
        (
            "/pre_tokenizer",
            json!({"type": "Split", "pattern": {"Regex": "[z-a]"}, "behavior": "Isolated", "invert": false}),
        ),
        (
            "/pre_tokenizer",
            json!({"type": "Split", "pattern": {"Regex": ""}, "behavior": "Removed", "invert": true}),
        ),
        ("/pre_tokenizer", json!({"type": "Metaspace", "replacement": "xy", "prepend_scheme": "always"})),
        ("/pre_tokenizer", json!({"type": "CharDelimiterSplit", "delimiter": ""})),
        (
            "/post_processor",
            json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "gone", "type_id": 0}}], "pair": [], "special_tokens": {}}),
        ),
        (
            "/post_processor",
            json!({"type": "RobertaProcessing", "sep": ["</s>", 4000000000u32], "cls": ["<s>", 9], "trim_offsets": true, "add_prefix_space": true}),
        ),
        ("/post_processor", json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true})),
        ("/model", json!({"type": "Unigram", "unk_id": 99, "vocab": [["a", -1.0]], "byte_fallback": true})),
        ("/model", json!({"type": "Unigram", "unk_id": null, "vocab": [], "byte_fallback": false})),
        (
            "/model",
            json!({"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["", -1.0], ["a", 1e308], ["b", -1e308]]}),
        ),
        ("/model", json!({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "gone"})),
        (
            "/model",
            json!({"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "gone", "continuing_subword_prefix": "", "max_input_chars_per_word": 0}),
        ),
        ("/model/dropout", json!(0.5)),
        ("/model/end_of_word_suffix", json!("</w>")),
        ("/model/continuing_subword_prefix", json!("##")),
        (
            "/truncation",
            json!({"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 99}),
        ),
        (
            "/padding",
            json!({"strategy": {"Fixed": 4000000000u32}, "direction": "Left", "pad_to_multiple_of": 0, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}),
        ),
        ("/added_tokens/0/content", json!("")),
        ("/added_tokens/0/id", json!(4_294_967_295u32)),
    ];
    for (at, value) in parts {
        let mut json = small();
        let (folder, key) = at.rsplit_once('/').unwrap();
        match json.pointer_mut(folder).unwrap() {
            Value::Array(_) => panic!("{at}"),
            place => place[key] = value.clone(),
        }
        let text = json.to_string();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            Tokenizer::from_json(text.as_bytes(), &Value::Null, &[]).map(|tokenizer| use_it(&tokenizer))
        }));
        assert!(outcome.is_ok(), "{at} = {value}");
    }
}

/// Tokens are dropped at random while a model is trained. A prompt is always the same tokens.
#[test]
fn a_dropout_of_training_is_left_out() {
    let mut json = small();
    json["model"]["dropout"] = json!(0.9);
    let tokenizer = Tokenizer::from_json(json.to_string().as_bytes(), &Value::Null, &[]).unwrap();
    for _ in 0..50 {
        assert_eq!(tokenizer.encode("ab", EncodeOptions::default()).unwrap(), [10]);
    }
}

/// Half a character of UTF-16, which JSON can spell and no text can hold.
#[test]
fn lone_surrogates_are_an_error_with_their_place() {
    let text = small().to_string().replace("\"<unk>\"", "\"\\ud83e\"");
    assert!(text.contains("\\ud83e"));
    let error = Tokenizer::from_json(text.as_bytes(), &Value::Null, &[]).map(drop).unwrap_err();
    assert!(matches!(&error, TextError::InvalidFile { detail, .. } if detail.contains("column")), "{error}");
    for bad in [r#"{"role": "user", "content": "\ud800"}"#, r#"{"role": "\udfff", "content": ""}"#] {
        assert!(serde_json::from_str::<Value>(bad).is_err(), "{bad}");
        assert!(serde_json::from_str::<Message>(bad).is_err(), "{bad}");
    }
}

#[test]
fn messages_that_are_none() {
    for bad in [json!(null), json!([]), json!("user"), json!({}), json!({"content": "x"}), json!({"role": 7})]
    {
        let error = Message::from_json(bad.clone()).map(drop).unwrap_err().to_string();
        assert!(error.contains("no object with a role"), "{bad}: {error}");
    }
    // A giant is shown in part.
    let error = Message::from_json(json!(["x".repeat(1 << 20)])).map(drop).unwrap_err().to_string();
    assert!(error.len() < 1000, "{} bytes", error.len());
}

/// A role is a name; what a template makes of one that it does not know is its own affair.
#[test]
fn roles_that_nobody_knows() {
    let render = |source: &str, role: &str| {
        let messages = [Message::new(role, "x")];
        ChatTemplate::new("t", source).unwrap().render_text(&ChatInput::new(&messages), &Default::default())
    };
    let writes = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    let refuses = "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('no role ' ~ m.role) }}{% endif %}{% endfor %}";
    for role in ["wizard", "", "User", "user ", "é🦙", "\0", "{{ 7 * 7 }}"] {
        assert_eq!(render(writes, role).unwrap(), format!("[{role}]x"));
        let error = render(refuses, role).unwrap_err();
        assert!(
            matches!(&error, TextError::TemplateRefused { message } if message.contains(role)),
            "{error}"
        );
    }
}

/// White space without end after what looks like the beginning of a special token: once walked through at each place.
#[test]
fn a_long_message_is_read_once() {
    let tokenizer = Tokenizer::from_json(small().to_string().as_bytes(), &Value::Null, &[]).unwrap();
    let template = ChatTemplate::new("t", "{{ messages[0].content }}").unwrap();
    let text = format!("{}{}", "<".repeat(1 << 20), " ".repeat(1 << 20));
    let messages = [Message::user(text.as_str())];
    let chat = template.render(&ChatInput::new(&messages), &tokenizer).unwrap();
    assert_eq!(chat.text(), text);
}

#[test]
fn no_gguf_vocabulary_panics() {
    let good = |model: &str| GgufVocab {
        model: model.to_owned(),
        pre: Some("gpt-2".to_owned()),
        tokens: ["<unk>", "<s>", "</s>", "a", "b", "ab", "\u{2581}a"].map(str::to_owned).to_vec(),
        scores: vec![0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0],
        token_types: vec![2, 3, 3, 1, 1, 1, 1],
        merges: vec!["a b".to_owned()],
        bos: Some(1),
        eos: Some(2),
        unk: Some(0),
        ..Default::default()
    };
    type Edit = fn(&mut GgufVocab);
    let edits: [Edit; 18] = [
        |_| (),
        |v| v.tokens.clear(),
        |v| v.tokens = vec![String::new(); 7],
        |v| v.tokens = vec!["a".to_owned(); 7],
        |v| v.scores.clear(),
        |v| v.scores = vec![f32::NAN; 7],
        |v| v.scores = vec![f32::INFINITY; 7],
        |v| v.scores.truncate(3),
        |v| v.token_types.clear(),
        |v| v.token_types = vec![-1; 7],
        |v| v.token_types = vec![i32::MAX; 7],
        |v| v.token_types.truncate(3),
        |v| v.merges = vec![String::new(), " ".to_owned(), "a".to_owned()],
        |v| v.merges = vec!["x y".to_owned()],
        |v| v.bos = Some(u32::MAX),
        |v| (v.eos, v.eot, v.eom, v.pad) = (Some(7), Some(8), Some(u32::MAX), Some(99)),
        |v| v.unk = Some(7),
        |v| v.chat_template = Some("{{".to_owned()),
    ];
    for model in ["gpt2", "llama", "bert", ""] {
        for (i, edit) in edits.iter().enumerate() {
            let mut vocab = good(model);
            edit(&mut vocab);
            let outcome = catch_unwind(AssertUnwindSafe(|| Tokenizer::from_gguf(&vocab).map(|t| use_it(&t))));
            match outcome {
                Ok(Ok(())) => {}
                Ok(Err(error)) => assert!(error.to_string().contains("GGUF"), "{model} {i}: {error}"),
                Err(_) => panic!("{model}, edit {i}: a panic"),
            }
        }
    }
}
