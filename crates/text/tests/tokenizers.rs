//! Real vocabularies against the token ids that their reference implementations give.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr)]

mod common;

use portolan_text::{DecodeOptions, EncodeOptions, GgufVocab, Tokenizer};
use serde_json::Value;

const RAW: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };
const PARSED: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };

#[track_caller]
fn check_vocabulary(name: &str) {
    let Some(path) = common::oracle(&format!("tokenizers/ggml-vocab-{name}.gguf")) else { return };
    let tokenizer = Tokenizer::from_gguf(&common::gguf::vocab(&path)).unwrap();
    let read = |suffix: &str| std::fs::read_to_string(format!("{}{suffix}", path.display())).unwrap();
    let (texts, ids) = (read(".inp"), read(".out"));
    let texts: Vec<&str> = texts.split_terminator("\n__ggml_vocab_test__\n").collect();
    let ids: Vec<Vec<u32>> =
        ids.lines().map(|line| line.split_whitespace().map(|id| id.parse().unwrap()).collect()).collect();
    assert!(texts.len() > 40 && texts.len() == ids.len(), "{} {}", texts.len(), ids.len());
    let mut failures = Vec::new();
    for (text, expected) in texts.iter().zip(&ids) {
        let got = tokenizer.encode(text, RAW).unwrap();
        if got != *expected {
            failures.push(format!("{text:?}\n  got      {got:?}\n  expected {expected:?}"));
        }
        assert_eq!(tokenizer.decode(&got, DecodeOptions::default()), *text);
    }
    assert!(failures.is_empty(), "{name}: {}", failures.join("\n"));
}

#[test]
fn gpt_2() {
    check_vocabulary("gpt-2");
}

#[test]
fn llama_bpe() {
    check_vocabulary("llama-bpe");
}

#[test]
fn qwen2() {
    check_vocabulary("qwen2");
}

#[test]
fn deepseek_llm() {
    check_vocabulary("deepseek-llm");
}

#[test]
fn llama_spm() {
    check_vocabulary("llama-spm");
}

#[test]
fn phi_3() {
    check_vocabulary("phi-3");
}

/// The same vocabularies through the files that are written of them.
#[track_caller]
fn check_files(name: &str) {
    let Some(path) = common::oracle(&format!("tokenizers/ggml-vocab-{name}.gguf")) else { return };
    let vocab = common::gguf::vocab(&path);
    let files = Tokenizer::files_from_gguf(&vocab).unwrap();
    let before = Tokenizer::from_gguf(&vocab).unwrap();
    let ends = before.end_of_generation_ids();
    let after = Tokenizer::from_json(files.tokenizer.to_string().as_bytes(), &files.config, ends).unwrap();
    let texts = std::fs::read_to_string(format!("{}.inp", path.display())).unwrap();
    for text in texts.split_terminator("\n__ggml_vocab_test__\n") {
        for add_special in [false, true] {
            let options = EncodeOptions { add_special, parse_special: false };
            let ids = after.encode(text, options).unwrap();
            // A text without a character has no first word that SentencePiece would put a space before.
            if !text.is_empty() {
                assert_eq!(ids, before.encode(text, options).unwrap(), "{name}: {text:?}");
            }
            assert_eq!(
                after.decode(&ids, DecodeOptions::default()),
                before.decode(&ids, DecodeOptions::default()),
                "{name}: {text:?}"
            );
        }
    }
    assert_eq!(after.vocab_size(), before.vocab_size(), "{name}");
    assert_eq!(after.named_tokens(), before.named_tokens(), "{name}");
    assert_eq!((after.bos_id(), after.eos_id()), (before.bos_id(), before.eos_id()), "{name}");
    assert_eq!(after.end_of_generation_ids(), ends, "{name}");
}

#[test]
fn files_of_gguf_vocabularies() {
    for name in ["gpt-2", "llama-bpe", "qwen2", "deepseek-llm", "llama-spm", "phi-3"] {
        check_files(name);
    }
}

/// SmolLM2's GGUF vocabulary, rebuilt from its tokenizer.json: the same tokens and merges.
fn smollm2_as_gguf() -> Option<GgufVocab> {
    let json = std::fs::read(common::oracle("smollm2/hf/tokenizer.json")?).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let vocab = json["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![String::new(); vocab.len()];
    for (text, id) in vocab {
        tokens[id.as_u64().unwrap() as usize] = text.clone();
    }
    let mut token_types = vec![1; tokens.len()];
    for added in json["added_tokens"].as_array().unwrap() {
        token_types[added["id"].as_u64().unwrap() as usize] = 3;
    }
    let merge = |m: &Value| format!("{} {}", m[0].as_str().unwrap(), m[1].as_str().unwrap());
    let merges = json["model"]["merges"].as_array().unwrap().iter().map(merge).collect();
    Some(GgufVocab {
        model: "gpt2".to_owned(),
        pre: Some("smollm".to_owned()),
        tokens,
        token_types,
        merges,
        bos: Some(1),
        eos: Some(2),
        ..Default::default()
    })
}

#[test]
fn smollm2() {
    let Some(vocab) = smollm2_as_gguf() else { return };
    let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
    let json = std::fs::read(common::oracle("smollm2/tokenizer_cases.json").unwrap()).unwrap();
    let cases: Value = serde_json::from_slice(&json).unwrap();
    for case in cases.as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let ids: Vec<u32> = serde_json::from_value(case["ids_llama_cpp"].clone()).unwrap();
        assert_eq!(tokenizer.encode(text, PARSED).unwrap(), ids, "{text:?}");
    }
    assert_eq!(tokenizer.end_of_generation_ids(), [0, 2]);
}

#[test]
fn special_tokens_of_real_vocabularies() {
    let load = |name: &str| {
        let path = common::oracle(&format!("tokenizers/ggml-vocab-{name}.gguf"))?;
        Some(Tokenizer::from_gguf(&common::gguf::vocab(&path)).unwrap())
    };
    let (Some(llama3), Some(phi3)) = (load("llama-bpe"), load("phi-3")) else { return };
    let special = EncodeOptions { add_special: true, parse_special: true };
    let ids = llama3.encode("a<|eot_id|>", special).unwrap();
    assert_eq!(ids, [128_000, 64, 128_009]);
    assert!(llama3.is_end_of_generation(128_009) && llama3.is_special(128_009));
    let ids = llama3.encode("a<|eot_id|>", RAW).unwrap();
    assert!(ids.iter().all(|&id| !llama3.is_special(id)));
    assert_eq!(llama3.decode(&ids, DecodeOptions::default()), "a<|eot_id|>");

    // A space goes before the first word, and again after a special token.
    let ids = phi3.encode("Hello<|end|>Hello", special).unwrap();
    assert_eq!(ids, [1, 15043, 32007, 15043]);
    assert!(phi3.is_end_of_generation(32007));
    let ids = phi3.encode("</s><0x0A>", RAW).unwrap();
    assert!(ids.iter().all(|&id| !phi3.is_special(id)), "{ids:?}");
    assert_eq!(phi3.decode(&ids, DecodeOptions::default()), "</s><0x0A>");
}

#[test]
fn broken_vocabularies_are_errors() {
    let good = GgufVocab {
        model: "gpt2".to_owned(),
        pre: Some("gpt-2".to_owned()),
        tokens: ["a", "b", "ab"].map(str::to_owned).to_vec(),
        merges: vec!["a b".to_owned(), "x y".to_owned()],
        ..Default::default()
    };
    assert_eq!(Tokenizer::from_gguf(&good).unwrap().encode("ab", RAW).unwrap(), [2]);
    #[track_caller]
    fn check(vocab: GgufVocab, part: &str) {
        let message = Tokenizer::from_gguf(&vocab).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
    check(
        GgufVocab { model: "rwkv".to_owned(), ..good.clone() },
        "\"rwkv\" is not supported; known are gpt2, llama",
    );
    check(GgufVocab { pre: Some("new-pre".to_owned()), ..good.clone() }, "\"new-pre\" is not known");
    check(GgufVocab { tokens: Vec::new(), ..good.clone() }, "0 tokens");
    check(GgufVocab { merges: vec!["ab".to_owned()], ..good.clone() }, "merge 0");
    check(GgufVocab { token_types: vec![1], ..good.clone() }, "1 entries for 3 tokens");
    check(GgufVocab { scores: vec![0.0], ..good.clone() }, "tokenizer.ggml.scores");
    check(GgufVocab { eos: Some(3), ..good }, "token 3 of a vocabulary of 3");
}
