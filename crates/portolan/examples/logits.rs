//! The likeliest tokens after a text, with their logits: [`Core`] without the engine's thread.
//! Arguments: a text, and a model.
#![allow(clippy::print_stdout)]

use portolan::{
    Core, Error, LoadOptions, SeqStep, Want,
    loader::{self, NoProgress},
    text::{DecodeOptions, EncodeOptions},
};

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let prompt = args.next().unwrap_or_else(|| "The capital of France is".to_owned());
    let model = args.next().unwrap_or_else(|| "smollm2".to_owned());

    let options = LoadOptions::default();
    let path = loader::find(&model, &mut NoProgress)?;
    let plan = loader::plan(&path, &options)?;
    let (tokenizer, _) = loader::texts(&plan.checkpoint);
    let tokenizer = tokenizer.map_err(|reason| Error::NoTokenizer { model: path, reason })?;
    let mut core = Core::load(&plan, &mut |_, _| ())?;

    let tokens = tokenizer.encode(&prompt, EncodeOptions { add_special: true, parse_special: false })?;
    let seq = core.create();
    // A step takes so many rows and no more, so a long text goes in chunks; the last one's logits count.
    let chunk = core.limits().rows;
    for part in tokens.chunks(chunk) {
        core.step(&[SeqStep { seq, tokens: part, want: Want::Last }])?;
    }
    let mut likeliest: Vec<(usize, f32)> = core.logits(0).iter().copied().enumerate().collect();
    likeliest.sort_by(|a, b| b.1.total_cmp(&a.1));
    for &(id, logit) in likeliest.iter().take(5) {
        let text = tokenizer.decode(&[id as u32], DecodeOptions::default());
        println!("{logit:8.3}  {id:6}  {text:?}");
    }
    Ok(())
}
