//! Tokenizers and templates from a checkpoint folder.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr)]

mod common;

use std::fs;
use std::path::PathBuf;

use portolan_text::{
    ChatInput, ChatTemplates, DecodeOptions, EncodeOptions, Message, StreamDecoder, TextError, Tokenizer,
};
use serde_json::{Value, json};

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("portolan-text-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, contents: &str) {
        fs::write(self.0.join(name), contents).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn from_small(config: Value) -> Tokenizer {
    Tokenizer::from_json(common::small().to_string().as_bytes(), &config, &[]).unwrap()
}

#[test]
fn special_tokens_at_the_ends() {
    let add = EncodeOptions { add_special: true, parse_special: false };
    let encode = |config| from_small(config).encode("ab", add).unwrap();
    assert_eq!(encode(json!({})), [1, 10]);
    // Classes with flags of their own go by these.
    let flags = |class, bos| json!({"tokenizer_class": class, "add_bos_token": bos, "bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_eos_token": true});
    assert_eq!(encode(flags("LlamaTokenizerFast", false)), [10, 2]);
    assert_eq!(encode(flags("LlamaTokenizer", true)), [1, 10, 2]);
    assert_eq!(encode(flags("PreTrainedTokenizerFast", false)), [1, 10]);
}

#[test]
fn sentencepiece_coding_decodes_as_the_library_does() {
    let json = common::small().to_string();
    let library = tokenizers::Tokenizer::from_bytes(json.as_bytes()).unwrap();
    let tokenizer = from_small(json!({}));
    for ids in [&[8, 5, 10][..], &[3, 4, 6], &[1, 8, 6, 2], &[5, 5, 6], &[10, 1, 10], &[3], &[]] {
        for skip_special in [true, false] {
            let options = DecodeOptions { skip_special, continues: false };
            let expected = library.decode(ids, skip_special).unwrap();
            assert_eq!(tokenizer.decode(ids, options), expected, "{ids:?}");
            let mut stream = StreamDecoder::new(&tokenizer, options);
            let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
            text += &stream.finish();
            assert_eq!(text, expected, "{ids:?}");
        }
    }
}

#[test]
fn control_tokens_that_the_model_lists_stay_text() {
    // With ignore_merges a whole piece is looked up, control tokens and all.
    let mut json = common::small();
    json["model"]["ignore_merges"] = true.into();
    json["normalizer"] = Value::Null;
    let tokenizer = Tokenizer::from_json(json.to_string().as_bytes(), &json!({}), &[]).unwrap();
    for (text, id) in [("</s>", 2), ("<unk>", 0), ("<s>", 1)] {
        let ids = tokenizer.encode(text, EncodeOptions::default()).unwrap();
        assert!(ids != [id], "{text}");
    }
    let parse = EncodeOptions { parse_special: true, add_special: false };
    assert_eq!(tokenizer.encode("</s>", parse).unwrap(), [2]);
}

#[test]
fn encodes_as_the_library_does() {
    let mut json = common::small();
    json["added_tokens"].as_array_mut().unwrap().push(json!({"id": 11, "content": "<a b>",
        "single_word": false, "lstrip": true, "rstrip": true, "normalized": true, "special": true}));
    let library = tokenizers::Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap();
    let tokenizer = Tokenizer::from_json(json.to_string().as_bytes(), &Value::Null, &[]).unwrap();
    for text in ["", "a", " ab  a", "a</s> b<s>", "aé</s", "a <a b> b", "x<unk>", "<a b></s>"] {
        for add_special in [true, false] {
            let options = EncodeOptions { add_special, parse_special: true };
            let expected = library.encode(text, add_special).unwrap();
            assert_eq!(tokenizer.encode(text, options).unwrap(), expected.get_ids(), "{text:?}");
        }
    }
}

#[test]
fn tokens_with_a_role_are_special_even_if_not_marked() {
    let mut json = common::small();
    json["added_tokens"] = json!([]);
    let config = json!({"eos_token": "</s>", "additional_special_tokens": [{"content": "ab"}, "none"]});
    let tokenizer = Tokenizer::from_json(json.to_string().as_bytes(), &config, &[]).unwrap();
    assert!(tokenizer.is_special(2) && tokenizer.is_special(9) && !tokenizer.is_special(1));
    assert_eq!(tokenizer.end_of_generation_ids(), [2]);
}

#[test]
fn files_beside_tokenizer_json() {
    let folder = Folder::new("beside");
    let error = Tokenizer::from_folder(&folder.0).unwrap_err();
    assert!(matches!(&error, TextError::NoTokenizer { .. }), "{error}");
    folder.write("tokenizer.model", "");
    let message = Tokenizer::from_folder(&folder.0).unwrap_err().to_string();
    assert!(message.contains("only tokenizer.model"), "{message}");

    folder.write("tokenizer.json", "{\"version\": 1");
    let message = Tokenizer::from_folder(&folder.0).unwrap_err().to_string();
    assert!(message.contains("tokenizer.json is not valid"), "{message}");

    folder.write("tokenizer.json", &common::small().to_string());
    folder.write("special_tokens_map.json", r#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}}"#);
    folder.write("generation_config.json", r#"{"eos_token_id": [9, 2]}"#);
    folder.write("tokenizer_config.json", r#"{"chat_template": "old"}"#);
    let tokenizer = Tokenizer::from_folder(&folder.0).unwrap();
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_id()), (Some(1), Some(2)));
    assert_eq!(tokenizer.end_of_generation_ids(), [2, 9]);
    assert_eq!(tokenizer.vocab_size(), 11);
    assert_eq!(tokenizer.token_bytes(3), Some(&[0xC3][..]));
    assert_eq!(tokenizer.token_bytes(11), None);
    assert_eq!(ChatTemplates::from_folder(&folder.0).unwrap().pick(None, true).unwrap().source(), "old");

    folder.write("chat_template.jinja", "new");
    fs::create_dir_all(folder.0.join("additional_chat_templates")).unwrap();
    folder.write("additional_chat_templates/tool_use.jinja", "tools");
    let templates = ChatTemplates::from_folder(&folder.0).unwrap();
    assert_eq!(templates.pick(None, false).unwrap().source(), "new");
    assert_eq!(templates.pick(None, true).unwrap().source(), "tools");

    folder.write("generation_config.json", r#"{"eos_token_id": "</s>"}"#);
    let message = Tokenizer::from_folder(&folder.0).unwrap_err().to_string();
    assert!(message.contains("generation_config.json is not valid"), "{message}");
}

#[test]
fn broken_tokenizers_are_errors() {
    let check = |change: &dyn Fn(&mut Value)| {
        let mut json = common::small();
        change(&mut json);
        Tokenizer::from_json(json.to_string().as_bytes(), &Value::Null, &[]).unwrap_err()
    };
    let error =
        check(&|json| json["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": true}));
    assert!(matches!(error, TextError::UnsupportedDecoder { .. }), "{error}");
    let error = check(&|json| json["decoder"] = Value::Null);
    assert!(matches!(error, TextError::UnsupportedDecoder { .. }), "{error}");
    let error = check(&|json| json["model"]["vocab"]["far"] = 4_000_000_000u32.into());
    assert!(matches!(error, TextError::InvalidFile { .. }), "{error}");
    let error = check(&|json| json["model"]["merges"] = json!([["x", "y"]]));
    assert!(matches!(error, TextError::InvalidFile { .. }), "{error}");
}

#[test]
fn smollm2_folder() {
    let Some(folder) = common::oracle("smollm2/hf") else { return };
    let tokenizer = Tokenizer::from_folder(&folder).unwrap();
    let json = fs::read(folder.join("../tokenizer_cases.json")).unwrap();
    let cases: Value = serde_json::from_slice(&json).unwrap();
    let parse = EncodeOptions { add_special: false, parse_special: true };
    let everything = DecodeOptions { skip_special: false, ..Default::default() };
    for case in cases.as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let ids: Vec<u32> = serde_json::from_value(case["ids_tokenizers_lib"].clone()).unwrap();
        assert_eq!(case["ids_tokenizers_lib"], case["ids_llama_cpp"]);
        assert_eq!(tokenizer.encode(text, parse).unwrap(), ids, "{text:?}");
        assert_eq!(tokenizer.decode(&ids, everything), text);
    }
    assert_eq!(tokenizer.vocab_size(), 49152);
    // It has no token for 21 of the bytes, and drops them: so nothing is known of a text's tokens before it is encoded.
    assert_eq!(tokenizer.encode("\u{4}\u{6}", parse).unwrap(), [] as [u32; 0]);
    assert_eq!(tokenizer.least_tokens(10_000_000), 0);
    assert_eq!(from_small(json!({})).least_tokens(10_000_000), 0);
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.pad_id()), (Some(1), Some(2), Some(2)));
    assert_eq!(tokenizer.end_of_generation_ids(), [0, 2]);

    let templates = ChatTemplates::from_folder(&folder).unwrap();
    let messages = [Message::user("Hi<|im_end|>")];
    let chat = templates.pick(None, false).unwrap().render(&ChatInput::new(&messages), &tokenizer).unwrap();
    let ids = tokenizer.encode_chat(&chat).unwrap();
    // System, user, and the beginning of the answer; the user's own <|im_end|> is text.
    assert_eq!(ids.iter().filter(|&&id| id == 1).count(), 3);
    assert_eq!(ids.iter().filter(|&&id| id == 2).count(), 2);
    assert_eq!(tokenizer.decode(&ids, everything), chat.text());
    assert!(chat.text().contains("user\nHi<|im_end|><|im_end|>\n<|im_start|>assistant\n"));
}

/// A pipe in place of a file would be waited for until somebody writes to it.
#[cfg(unix)]
#[test]
fn pipes_are_no_tokenizers() {
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        let folder = Folder::new(&format!("pipe-{name}"));
        if name != "tokenizer.json" {
            folder.write("tokenizer.json", &common::small().to_string());
        }
        let made = std::process::Command::new("mkfifo").arg(folder.0.join(name)).status();
        if !made.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED(no mkfifo)");
            return;
        }
        let tokenizer = Tokenizer::from_folder(&folder.0).map(drop);
        let templates = ChatTemplates::from_folder(&folder.0).map(drop);
        let error = tokenizer.and(templates).expect_err("a pipe was accepted").to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }
}

#[test]
fn a_mark_in_front_is_left_out_and_a_giant_is_refused() {
    let folder = Folder::new("mark");
    folder.write("tokenizer.json", &format!("\u{feff}{}", common::small()));
    folder.write("tokenizer_config.json", "\u{feff}{\"bos_token\": \"<s>\"}");
    folder.write("chat_template.jinja", "\u{feff}{{ messages[0].content }}");
    Tokenizer::from_folder(&folder.0).map(drop).unwrap();
    let templates = ChatTemplates::from_folder(&folder.0).unwrap();
    assert_eq!(templates.pick(None, false).unwrap().source(), "{{ messages[0].content }}");
    // Sparse: it takes no place on the disk.
    for name in ["chat_template.jinja", "tokenizer.json"] {
        fs::File::options().write(true).open(folder.0.join(name)).unwrap().set_len(1 << 40).unwrap();
        let error = match name {
            "tokenizer.json" => Tokenizer::from_folder(&folder.0).map(drop),
            _ => ChatTemplates::from_folder(&folder.0).map(drop),
        };
        let text = error.unwrap_err().to_string();
        assert!(text.contains(name) && text.contains("1099511627776 bytes"), "{text}");
    }
}
