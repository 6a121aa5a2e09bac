//! Any text as a chat template: an error, or a text of bounded length, in bounded time.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use portolan_text::{ChatInput, ChatTemplate, Message};
use serde_json::json;

fuzz_target!(|source: &str| {
    let Ok(template) = ChatTemplate::new("fuzz", source) else { return };
    let named = BTreeMap::from([
        ("bos_token".to_owned(), "<s>".to_owned()),
        ("eos_token".to_owned(), "</s>".to_owned()),
    ]);
    let messages =
        [Message::system("be brief"), Message::user("Hello!"), Message::assistant("<think>x</think>Hi")];
    let tools = [json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}})];
    for with_tools in [false, true] {
        let mut input = ChatInput::new(&messages);
        input.tools = with_tools.then_some(tools.as_slice());
        if let Err(error) = template.render_text(&input, &named) {
            let text = error.to_string();
            assert!(text.len() < 1 << 20, "a message of {} bytes", text.len());
        }
    }
});
