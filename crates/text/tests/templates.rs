//! Real chat templates against what jinja2, as transformers sets it up, renders from them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr)]

mod common;

use std::collections::BTreeMap;

use portolan_text::{ChatInput, ChatTemplate, Clock, LocalTime, Message, TextError};
use serde_json::Value;

/// 2026-01-15T12:30:00, the oracle's clock.
const NOW: i64 = 1_768_480_200;

#[test]
fn every_oracle_template_renders_as_jinja2_does() {
    let Some(folder) = common::oracle("templates") else { return };
    let json = std::fs::read(folder.join("expected.json")).unwrap();
    let oracle: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(oracle["now"], "2026-01-15T12:30:00");
    let named = ["bos_token", "eos_token", "unk_token", "pad_token"];
    let named: BTreeMap<String, String> =
        named.iter().map(|&n| (n.to_owned(), oracle[n].as_str().unwrap().to_owned())).collect();
    let tools = oracle["tools"].as_array().unwrap();
    let mut failures = Vec::new();
    let mut cases = 0;
    for (name, template) in oracle["templates"].as_object().unwrap() {
        let source = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        let parsed = match ChatTemplate::new(name, source) {
            Ok(parsed) => parsed,
            Err(error) => {
                failures.push(error.to_string());
                continue;
            }
        };
        for case in template["cases"].as_array().unwrap() {
            cases += 1;
            let which = case["case"].as_str().unwrap();
            let messages: Vec<Message> =
                serde_json::from_value(oracle["conversations"][which].clone()).unwrap();
            let mut input = ChatInput::new(&messages);
            input.tools = which.starts_with("tool").then_some(tools);
            input.add_generation_prompt = case["add_generation_prompt"].as_bool().unwrap();
            input.clock = Clock::Fixed(LocalTime::from_unix(NOW));
            let got = parsed.render_text(&input, &named);
            let verdict = match (&got, case["expected"].as_str(), case["error"].as_str()) {
                (Ok(got), Some(expected), _) => got == expected,
                (Err(_), None, Some(refusal)) if refuses_in_python(refusal) => true,
                (Err(TextError::TemplateRefused { message }), None, Some(refusal)) => message == refusal,
                _ => false,
            };
            if !verdict {
                let expected = case["expected"].as_str().or(case["error"].as_str());
                failures.push(format!("{name} {which}: got {got:?}\n  expected {expected:?}"));
            }
        }
    }
    assert!(failures.is_empty(), "{} of {cases} cases:\n{}", failures.len(), failures.join("\n"));
    assert!(cases >= 400, "only {cases} cases");
}

/// Errors of Python's own, whose words need not be ours; any error of ours will do.
fn refuses_in_python(refusal: &str) -> bool {
    refusal.starts_with("TypeError") || refusal.starts_with("access to attribute")
}
