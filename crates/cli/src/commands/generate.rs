//! `portolan generate`: text after a prompt.

use std::io::{IsTerminal, stdin};

use portolan::{Engine, GenerateOptions, Generation, Prompt, Summary};
use serde_json::{Value, json};

use crate::{args::GenerateArgs, output};

pub(crate) fn run(args: GenerateArgs) -> anyhow::Result<()> {
    let prompt = match args.prompt.as_str() {
        "-" => super::read_text(stdin(), "the prompt from standard input")?,
        text => text.to_owned(),
    };
    let mut options = GenerateOptions::default();
    options.max_tokens = args.max_tokens;
    options.stop = args.stop.clone();
    options.ignore_eos = args.ignore_eos;
    options.sampling = args.sample.params();
    options.sampling.logprobs = args.logprobs;
    let engine = super::load(&args.model, &args.load, &options)?;
    let summary = if args.no_chat_template {
        let generation = engine.generate(Prompt::Text(&prompt), &options)?;
        write_out(&engine, generation, args.json)?
    } else {
        let mut chat = engine.chat()?;
        let generation = chat.send(&prompt, &options)?;
        write_out(&engine, generation, args.json)?
    };
    if args.profile {
        output::print_profile(engine.info(), &summary);
    } else if std::io::stderr().is_terminal() {
        eprintln!("[{}]", output::rates_line(&summary.stats));
    }
    Ok(())
}

/// Writes the text as it comes, or one JSON object when it is complete.
fn write_out(engine: &Engine, mut generation: Generation<'_>, as_json: bool) -> anyhow::Result<Summary> {
    let mut logprobs: Vec<Value> = Vec::new();
    for piece in &mut generation {
        let piece = piece?;
        if !as_json {
            output::print_now(&piece.text)?;
        } else if let (Some(id), Some(logprob)) = (piece.token, piece.logprob) {
            let top: Vec<Value> =
                piece.top.iter().map(|t| json!({"id": t.id, "logprob": t.logprob})).collect();
            logprobs.push(json!({"id": id, "logprob": logprob, "top": top}));
        }
    }
    let text = generation.text().to_owned();
    let tokens = generation.tokens().to_vec();
    let summary = generation.finish()?;
    if as_json {
        let stats = &summary.stats;
        let mut object = json!({
            "text": text,
            "tokens": tokens,
            "finish_reason": summary.reason.name(),
            "prompt_tokens": stats.prompt_tokens,
            "reused_tokens": stats.reused_tokens,
            "generated_tokens": stats.generated_tokens,
            "prefill_seconds": stats.prefill_time.as_secs_f64(),
            "decode_seconds": stats.decode_time.as_secs_f64(),
            "prefill_tokens_per_second": stats.prefill_rate(),
            "decode_tokens_per_second": stats.decode_rate(),
            "model": engine.info().path.display().to_string(),
            "device": engine.info().device,
        });
        if !logprobs.is_empty() {
            object["logprobs"] = Value::Array(logprobs);
        }
        output::print_now(&format!("{object}\n"))?;
    } else if !text.ends_with('\n') {
        output::print_now("\n")?;
    }
    Ok(summary)
}
