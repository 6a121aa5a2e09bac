//! Loads a model and streams an answer. The README shows this program; a test holds the two together.
#![allow(clippy::print_stdout)]

use std::io::{Write, stdout};

use portolan::{Engine, GenerateOptions, LoadOptions};

fn main() -> Result<(), portolan::Error> {
    let engine = Engine::load("smollm2", &LoadOptions::default())?;
    let mut chat = engine.chat()?;
    let mut answer = chat.send("Why is the sky blue?", &GenerateOptions::tokens(64))?;
    for piece in &mut answer {
        print!("{}", piece?.text);
        stdout().flush().ok();
    }
    let summary = answer.finish()?;
    println!("\n{:?}, {:.1} tokens/s", summary.reason, summary.stats.decode_rate());
    Ok(())
}
