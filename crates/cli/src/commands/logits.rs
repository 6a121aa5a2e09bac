//! `portolan logits`: the logits of token ids, into a file.

use std::path::Path;

use anyhow::{Context, bail};
use portolan::tools;

use crate::args::LogitsArgs;

pub(crate) fn run(args: LogitsArgs) -> anyhow::Result<()> {
    let ids = parse_ids(&args.ids)?;
    if args.chunk == 0 {
        bail!("--chunk is 0, expected at least 1");
    }
    let mut options = args.load.options();
    // Every row wants logits here, so a step is as large as a chunk.
    let rows = args.chunk.min(ids.len()).max(1);
    options.chunk = rows;
    options.max_logits = rows;
    options.max_sequences = 1;
    let (plan, _) = super::plan(&args.model, &options)?;
    super::check_output(&plan, &args.output)?;
    let mut core = super::load_core(&plan)?;
    let logits = tools::logits::logits(&mut core, &ids, args.greedy, rows)?;
    logits.save(&args.output)?;
    Ok(())
}

/// `1,2,3`, or a file that holds such a list.
pub(super) fn parse_ids(text: &str) -> anyhow::Result<Vec<u32>> {
    let path = Path::new(text);
    if path.is_dir() {
        bail!(
            "--ids: {text} is a folder; give token ids with commas between them, or a file that holds them"
        );
    }
    // A pipe or a device too: whatever is there and is no folder.
    let from_file = !text.is_empty() && path.exists();
    let list = if from_file { super::read_file(path)? } else { text.to_owned() };
    let ids = list
        .split(|c: char| c == ',' || c.is_whitespace() || c == '[' || c == ']')
        .filter(|word| !word.is_empty())
        .map(|word| {
            let place = if from_file { format!("in {text}") } else { "of --ids".to_owned() };
            word.parse::<u32>()
                .with_context(|| format!("'{word}' {place} is no token id, nor a file of them"))
        })
        .collect::<anyhow::Result<Vec<u32>>>()?;
    if ids.is_empty() {
        bail!(
            "--ids holds no token id{}",
            if from_file { format!(": {text} is empty") } else { String::new() }
        );
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<&[u32]>) {
        assert_eq!(parse_ids(text).ok().as_deref(), expected, "{text:?}");
    }

    #[test]
    fn ids() {
        check("1,2,3", Some(&[1, 2, 3]));
        check("1, 2\n3", Some(&[1, 2, 3]));
        check("[7]", Some(&[7]));
        check("", None);
        check("1,x", None);
        check("-1", None);
        check("4294967296", None);
        check("/no/such/file", None);
    }
}
