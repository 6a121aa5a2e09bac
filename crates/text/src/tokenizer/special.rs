use serde_json::Value;

use crate::TextError;

/// Names under which models call the token that ends a turn, a message or a text.
const END_NAMES: &[&str] = &[
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<turn|>",
    "<|tool_response>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
    "<eos>",
    "</s>",
    "<｜end▁of▁sentence｜>",
];

/// Whether a token of this name ends a generation in the models that have it.
pub(crate) fn names_an_end(name: &str) -> bool {
    END_NAMES.contains(&name)
}

/// All ids that end a generation: those that the files declare, and special tokens whose names
/// say so. Sorted.
pub(crate) fn end_ids<'a>(
    declared: impl IntoIterator<Item = u32>,
    special: impl Iterator<Item = (u32, &'a str)> + Clone,
) -> Vec<u32> {
    let declared: Vec<u32> = declared.into_iter().collect();
    let has = |name: &str| special.clone().any(|(_, text)| text == name);
    // In the harmony format <|end|> ends a message, after which the model goes on.
    let messages_go_on = has("<|return|>") && has("<|call|>") || has("<|calls|>") && has("<|flush|>");
    // Gemma 4 carries </s> for other uses.
    let other_use_of_s = has("<|tool_response>");
    let ends = |name: &str| match name {
        "<|end|>" => !messages_go_on,
        "</s>" => !other_use_of_s,
        name => names_an_end(name),
    };
    let named = special.clone().filter(|(_, text)| ends(text)).map(|(id, _)| id);
    let mut ids: Vec<u32> = named.chain(declared).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// The `eos_token_id` of a `generation_config.json` or `config.json`: a number, a list, or none.
///
/// # Errors
/// [`TextError::InvalidFile`] if it is something else; `file` names it there.
pub fn eos_ids(config: &Value, file: &str) -> Result<Vec<u32>, TextError> {
    let invalid = |value: &Value| TextError::InvalidFile {
        file: file.to_owned(),
        detail: format!("eos_token_id is {value}, not a token id or a list of them"),
    };
    let id =
        |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| invalid(value));
    match config.get("eos_token_id") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(ids)) => ids.iter().map(id).collect(),
        Some(one) => Ok(vec![id(one)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(declared: &[u32], special: &[&str], expected: &[u32]) {
        let special = special.iter().enumerate().map(|(id, text)| (id as u32, *text));
        assert_eq!(end_ids(declared.iter().copied(), special), expected);
    }

    #[test]
    fn ends() {
        check(&[7], &["<|im_start|>", "<|im_end|>", "<|endoftext|>"], &[1, 2, 7]);
        check(&[0], &["<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"], &[0, 1, 2]);
        check(&[1], &["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"], &[1, 3]);
        check(&[], &["<|return|>", "<|call|>", "<|end|>"], &[0, 1]);
        check(&[], &["<|end|>", "<|assistant|>"], &[0]);
        check(&[], &["</s>", "<turn|>", "<|tool_response>"], &[1, 2]);
    }

    #[test]
    fn eos_lists() {
        assert_eq!(eos_ids(&json!({"eos_token_id": 2}), "f").unwrap(), [2]);
        assert_eq!(eos_ids(&json!({"eos_token_id": [1, 5]}), "f").unwrap(), [1, 5]);
        assert!(eos_ids(&json!({"eos_token_id": null}), "f").unwrap().is_empty());
        assert!(eos_ids(&json!({}), "f").unwrap().is_empty());
        for bad in [json!("</s>"), json!(-1), json!([1, "x"]), json!(1u64 << 40)] {
            assert!(eos_ids(&json!({"eos_token_id": bad}), "f").is_err());
        }
    }
}
