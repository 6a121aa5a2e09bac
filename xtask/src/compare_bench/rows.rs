//! Runs in a file: the CSV of `portolan bench`, or of llama.cpp's `llama-bench`.

use std::path::Path;

use anyhow::{Context, Result, bail};

/// One run of one test.
#[derive(Debug, PartialEq)]
pub(super) struct Row {
    /// `pp512`, `tg128@d4096`.
    pub(super) test: String,
    pub(super) tokens_per_second: f64,
}

/// All runs of a file, in their order.
pub(super) fn read(path: &Path) -> Result<Vec<Row>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    parse(&text).with_context(|| format!("in {}", path.display()))
}

/// Where a header has what a row is made of.
enum Columns {
    Portolan { test: usize, speed: usize },
    Llama { prompt: usize, generate: usize, depth: Option<usize>, speed: usize },
}

impl Columns {
    /// None for a line that is no header.
    fn of(line: &csv::StringRecord) -> Option<Self> {
        let at = |name: &str| line.iter().position(|column| column == name);
        if let (Some(test), Some(speed)) = (at("test"), at("tokens_per_second")) {
            return Some(Columns::Portolan { test, speed });
        }
        Some(Columns::Llama {
            prompt: at("n_prompt")?,
            generate: at("n_gen")?,
            depth: at("n_depth"),
            speed: at("avg_ts")?,
        })
    }

    fn row(&self, line: &csv::StringRecord) -> Result<Row> {
        let column = |at: usize| line.get(at).with_context(|| format!("there is no column {}", at + 1));
        let number = |at: usize| -> Result<f64> {
            let text = column(at)?;
            text.parse().with_context(|| format!("{text:?} in column {} is no number", at + 1))
        };
        let (test, speed) = match *self {
            Columns::Portolan { test, speed } => (column(test)?.to_owned(), number(speed)?),
            Columns::Llama { prompt, generate, depth, speed } => {
                let (kind, tokens) = match (number(prompt)?, number(generate)?) {
                    (n, 0.0) => ("pp", n),
                    (0.0, n) => ("tg", n),
                    (p, g) => bail!(
                        "a run of {p} tokens of prompt and {g} generated is no test of `portolan bench`"
                    ),
                };
                let depth = depth.map(number).transpose()?.unwrap_or(0.0);
                let depth = if depth > 0.0 { format!("@d{depth}") } else { String::new() };
                (format!("{kind}{tokens}{depth}"), number(speed)?)
            }
        };
        if !(speed.is_finite() && speed > 0.0) {
            bail!("{speed} is no speed");
        }
        Ok(Row { test, tokens_per_second: speed })
    }
}

fn parse(text: &str) -> Result<Vec<Row>> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.as_bytes());
    let mut columns = None;
    let mut rows = Vec::new();
    for line in reader.records() {
        let line = line.context("not CSV")?;
        // Outputs of several runs may follow each other, each with its header.
        if let Some(header) = Columns::of(&line) {
            columns = Some(header);
            continue;
        }
        let Some(columns) = &columns else {
            bail!("the first line is no header of `portolan bench --csv` or `llama-bench -o csv`");
        };
        let at = line.position().map_or(0, csv::Position::line);
        rows.push(columns.row(&line).with_context(|| format!("line {at}"))?);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[(&str, f64)]) {
        let expected: Vec<_> =
            expected.iter().map(|&(t, s)| Row { test: t.to_owned(), tokens_per_second: s }).collect();
        assert_eq!(parse(text).unwrap(), expected);
    }

    #[track_caller]
    fn refused(text: &str, why: &str) {
        let error = format!("{:#}", parse(text).unwrap_err());
        assert!(error.contains(why), "{error}");
    }

    const OURS: &str = "model,test,run,tokens,seconds,tokens_per_second\n";

    #[test]
    fn both_programs() {
        check(
            &format!("{OURS}\"a, b\",pp512,0,512,0.5,1024\n\"a, b\",tg128@d64,1,128,1,128\n"),
            &[("pp512", 1024.0), ("tg128@d64", 128.0)],
        );
        let again = format!("{OURS}m,tg8,0,8,1,8\n{OURS}m,tg8,0,8,1,9\n");
        check(&again, &[("tg8", 8.0), ("tg8", 9.0)]);
        let llama = "build_commit,n_prompt,n_gen,n_depth,avg_ts,stddev_ts\n\"x\",\"512\",\"0\",\"0\",\"330.5\",\"0\"\n\
                     \"x\",\"0\",\"128\",\"4096\",\"20\",\"0\"\n";
        check(llama, &[("pp512", 330.5), ("tg128@d4096", 20.0)]);
    }

    #[test]
    fn what_is_no_result() {
        refused("hello\n", "no header");
        refused(&format!("{OURS}m,tg8,0,8,1\n"), "line 2: there is no column 6");
        refused(&format!("{OURS}m,tg8,0,8,1,fast\n"), "\"fast\" in column 6 is no number");
        refused(&format!("{OURS}m,tg8,0,8,0,inf\n"), "inf is no speed");
        refused("n_prompt,n_gen,avg_ts\n512,128,3\n", "512 tokens of prompt and 128 generated");
    }
}
