//! `portolan run`: one answer, or a conversation.

use std::{
    io::{ErrorKind, IsTerminal, stderr, stdin, stdout},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::Context;
use portolan::{
    Chat, Engine, FinishReason, GenerateOptions, Generation,
    hub::{self, HubOptions},
    text::Message,
};
use rustyline::{DefaultEditor, error::ReadlineError};

use crate::{args::RunArgs, output};

pub(crate) fn run(args: RunArgs) -> anyhow::Result<()> {
    let mut options = GenerateOptions::default();
    options.max_tokens = Some(args.max_tokens);
    options.sampling = args.sample.params();
    // Before a prompt is waited for.
    options.check()?;
    let (model, prompt) = model_and_prompt(&args.words)?;
    let engine = super::load(&model, &args.load, &options)?;
    let mut chat = engine.chat()?;
    if let Some(system) = &args.system {
        chat.push(Message::system(system.as_str()));
    }
    match prompt {
        Some(prompt) => {
            let stop = on_ctrl_c()?;
            answer(&engine, &mut chat, &prompt, &options, &stop, args.profile)
        }
        None => converse(&engine, &mut chat, &options, args.profile),
    }
}

/// Two words are a model and a prompt. One is a model if it names one, else a prompt for the default model.
fn model_and_prompt(words: &[String]) -> anyhow::Result<(String, Option<String>)> {
    let default = || hub::DEFAULT_MODEL.to_owned();
    Ok(match words {
        [] => (default(), piped_prompt()?),
        [model, prompt] => (model.clone(), Some(prompt.clone())),
        [word, ..] if names_a_model(word) => (word.clone(), piped_prompt()?),
        [word, ..] => (default(), Some(word.clone())),
    })
}

/// A path that is there, the default model's name, a hub name or something that can only be meant as a path.
fn names_a_model(word: &str) -> bool {
    if Path::new(word).exists() || word.ends_with(".gguf") || word.ends_with(".safetensors") {
        return true;
    }
    if word.starts_with("./") || word.starts_with("../") || word.starts_with('/') || word.starts_with('~') {
        return !word.contains(char::is_whitespace);
    }
    let cached = HubOptions::from_env().and_then(|options| hub::locate(word, &options));
    let is_hub_name = word.matches('/').count() == 1 && !word.contains(char::is_whitespace);
    is_hub_name || word.eq_ignore_ascii_case(hub::DEFAULT_MODEL) || matches!(cached, Ok(Some(_)))
}

/// A prompt from a pipe.
fn piped_prompt() -> anyhow::Result<Option<String>> {
    if stdin().is_terminal() {
        return Ok(None);
    }
    let text = super::read_text(stdin(), "the prompt from standard input")?;
    Ok(Some(text.trim_end_matches('\n').to_owned()).filter(|t| !t.is_empty()))
}

/// Set by Ctrl-C while something goes on that can be stopped. A second one, with nothing to stop, ends the program.
pub(super) fn on_ctrl_c() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    stop_on_ctrl_c(stop.clone())?;
    Ok(stop)
}

/// The same for a flag that others set too.
pub(super) fn stop_on_ctrl_c(flag: Arc<AtomicBool>) -> anyhow::Result<()> {
    ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
    })
    .context("setting up Ctrl-C")
}

fn answer(
    engine: &Engine,
    chat: &mut Chat,
    prompt: &str,
    options: &GenerateOptions,
    stop: &AtomicBool,
    profile: bool,
) -> anyhow::Result<()> {
    stop.store(false, Ordering::SeqCst);
    let mut generation = chat.send(prompt, options)?;
    write_out(&mut generation, stop)?;
    let summary = generation.finish()?;
    if profile {
        output::print_profile(engine.info(), &summary);
    } else if stderr().is_terminal() {
        eprintln!("[{}]", output::rates_line(&summary.stats));
    }
    if summary.reason == FinishReason::ContextFull {
        eprintln!("the context is full; load with a larger --context, or /reset");
    }
    Ok(())
}

/// Writes the text as it comes, and a line's end.
fn write_out(generation: &mut Generation<'_>, stop: &AtomicBool) -> anyhow::Result<()> {
    let mut last = String::new();
    while let Some(piece) = generation.next() {
        let piece = piece?;
        output::print_now(&piece.text)?;
        if !piece.text.is_empty() {
            last = piece.text;
        }
        if stop.load(Ordering::SeqCst) {
            generation.cancel();
        }
    }
    if !last.ends_with('\n') {
        output::print_now("\n")?;
    }
    stop.store(false, Ordering::SeqCst);
    Ok(())
}

const HELP: &str = "/help   this text\n/reset  forget the conversation\n/exit   leave (Ctrl-D too)\n\
                    Ctrl-C stops an answer.";

fn converse(
    engine: &Engine,
    chat: &mut Chat,
    options: &GenerateOptions,
    profile: bool,
) -> anyhow::Result<()> {
    if stdout().is_terminal() {
        eprintln!("Type a message. /help tells more.");
    }
    let mut editor = DefaultEditor::new()?;
    // LOCAL_FIX(4): after the editor, which takes SIGINT for itself as long as it lives.
    let stop = on_ctrl_c()?;
    let history = HubOptions::from_env().ok().map(|o| o.models_dir.with_file_name("history"));
    if let Some(history) = &history {
        // There is none the first time.
        let _ = editor.load_history(history);
    }
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                eprintln!("that was no UTF-8 text; type it again");
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let _ = editor.add_history_entry(line);
        match line {
            "/exit" | "/quit" => break,
            "/help" => eprintln!("{HELP}"),
            "/reset" => {
                chat.reset();
                eprintln!("The conversation is forgotten.");
            }
            command if command.starts_with('/') && !command.contains(char::is_whitespace) => {
                eprintln!("unknown command {command}\n{HELP}");
            }
            // A message that cannot be answered (a full context, say) ends neither the program nor the conversation.
            message => {
                if let Err(error) = answer(engine, chat, message, options, &stop, profile) {
                    if output::is_broken_pipe(&error) {
                        return Err(error);
                    }
                    eprintln!("error: {}", output::describe(&error));
                }
            }
        }
    }
    if let Some(history) = &history {
        if let Some(folder) = history.parent() {
            let _ = std::fs::create_dir_all(folder);
        }
        if let Err(error) = editor.save_history(history) {
            eprintln!("the history could not be saved to {}: {error}", history.display());
        }
    }
    Ok(())
}
