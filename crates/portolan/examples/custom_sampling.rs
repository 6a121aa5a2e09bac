//! Picks tokens itself, step by step: the likeliest whose text has no letter `e`.
//! Arguments: a text, and a model.
#![allow(clippy::print_stdout)]

use std::io::{Write, stdout};

use portolan::{
    Core, Error, LoadOptions, SeqStep, Want,
    loader::{self, NoProgress},
    text::{DecodeOptions, EncodeOptions, StreamDecoder, Tokenizer},
};

/// The rule of this program. `logits` has an entry a token.
fn pick(logits: &[f32], tokenizer: &Tokenizer) -> u32 {
    let allowed = |id: u32| tokenizer.token_bytes(id).is_some_and(|text| !text.contains(&b'e'));
    let candidates = (0..logits.len() as u32).zip(logits).filter(|&(id, _)| allowed(id));
    candidates.max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(id, _)| id)
}

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let prompt = args.next().unwrap_or_else(|| "Once upon a time".to_owned());
    let model = args.next().unwrap_or_else(|| "smollm2".to_owned());

    let options = LoadOptions::default();
    let path = loader::find(&model, &mut NoProgress)?;
    let plan = loader::plan(&path, &options)?;
    let (tokenizer, _) = loader::texts(&plan.checkpoint);
    let tokenizer = tokenizer.map_err(|reason| Error::NoTokenizer { model: path, reason })?;
    let mut core = Core::load(&plan, &mut |_, _| ())?;

    let mut next = tokenizer.encode(&prompt, EncodeOptions { add_special: true, parse_special: false })?;
    let mut decoder = StreamDecoder::new(&tokenizer, DecodeOptions::default());
    let seq = core.create();
    print!("{prompt}");
    for _ in 0..48 {
        core.step(&[SeqStep { seq, tokens: &next, want: Want::Last }])?;
        let id = pick(core.logits(0), &tokenizer);
        if tokenizer.is_end_of_generation(id) {
            break;
        }
        print!("{}", decoder.push(id));
        stdout().flush().ok();
        next = vec![id];
    }
    println!("{}", decoder.finish());
    Ok(())
}
