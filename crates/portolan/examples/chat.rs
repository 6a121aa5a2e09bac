//! A conversation: a message a line from standard input. The model is the first argument, or the default one.
#![allow(clippy::print_stdout)]

use std::io::{Write, stdin, stdout};

use portolan::{Engine, GenerateOptions, LoadOptions, text::Message};

fn main() -> Result<(), portolan::Error> {
    let model = std::env::args().nth(1).unwrap_or_else(|| "smollm2".to_owned());
    let engine = Engine::load(&model, &LoadOptions::default())?;
    let mut chat = engine.chat()?;
    chat.push(Message::system("You answer in one short sentence."));
    let mut options = GenerateOptions::tokens(128);
    options.sampling.temperature = 0.7;
    options.sampling.top_p = 0.95;
    for line in stdin().lines().map_while(Result::ok) {
        // What both have said so far is still in the cache: only the new message is computed.
        let mut answer = chat.send(&line, &options)?;
        for piece in &mut answer {
            print!("{}", piece?.text);
            stdout().flush().ok();
        }
        let stats = answer.finish()?.stats;
        println!("\n[{} of {} prompt tokens were in the cache]", stats.reused_tokens, stats.prompt_tokens);
    }
    Ok(())
}
