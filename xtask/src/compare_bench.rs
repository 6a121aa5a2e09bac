//! `cargo xtask compare-bench A B`: two results of interleaved runs, pair by pair.
//!
//! A machine's speed drifts by more than most changes bring. Runs of A and B that follow each other saw the same machine, so
//! the ratio of such a pair says more than two medians do, and the ratios of all pairs say how sure the answer is.

mod rows;
mod stats;

use std::{fmt::Write as _, path::PathBuf, process::ExitCode};

use anyhow::{Result, bail};

use rows::{Row, read};
use stats::{Interval, interval, median};

const HELP: &str =
    "Files are what `portolan bench --csv` prints, or `llama-bench -o csv`; the outputs of many runs may \
follow each other in one file. Interleave them:
  for i in $(seq 10); do
    portolan bench -m MODEL -r 1 --csv >> a.csv
    llama-bench -m MODEL.gguf -r 1 -o csv >> b.csv
  done
The status is 0; 3 where --at-least is not reached; 2 where the files cannot be read or paired.";

/// Two files, in which the n-th runs of a test belong together.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// The results to compare with.
    base: PathBuf,
    /// The results of what is judged.
    other: PathBuf,
    /// Fail unless the lower 95 % bound of every ratio is at least this.
    #[arg(long, value_name = "RATIO")]
    at_least: Option<f64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A test that both files have.
#[derive(Debug, serde::Serialize)]
struct Compared {
    test: String,
    base: Arm,
    other: Arm,
    /// `other / base` of each pair, in the order of the runs.
    ratios: Vec<f64>,
    median_ratio: f64,
    #[serde(flatten)]
    interval: Option<Interval>,
    verdict: &'static str,
}

/// The runs of one file, in tokens a second.
#[derive(Debug, serde::Serialize)]
struct Arm {
    runs: usize,
    median: f64,
    slowest: f64,
    fastest: f64,
}

impl Arm {
    fn of(speeds: &[f64]) -> Self {
        let fold = |f: fn(f64, f64) -> f64| speeds.iter().copied().reduce(f).unwrap_or(f64::NAN);
        Arm { runs: speeds.len(), median: median(speeds), slowest: fold(f64::min), fastest: fold(f64::max) }
    }
}

/// Compares and prints. The status is that of the help.
pub(crate) fn main(args: &Args) -> ExitCode {
    match run(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// False where a ratio is below what was asked.
fn run(args: &Args) -> Result<bool> {
    let (base, other) = (read(&args.base)?, read(&args.other)?);
    let compared = compare(&base, &other)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&compared)?);
    } else {
        print!("{}", table(&compared));
    }
    let short = |c: &&Compared| args.at_least.is_some_and(|least| c.interval.is_none_or(|i| i.lower < least));
    let below: Vec<_> = compared.iter().filter(short).collect();
    for c in &below {
        eprintln!("{}: the lower bound of B/A is below {}", c.test, args.at_least.unwrap_or_default());
    }
    Ok(below.is_empty())
}

/// Pairs the n-th run of a test in one file with the n-th in the other.
fn compare(base: &[Row], other: &[Row]) -> Result<Vec<Compared>> {
    let speeds = |rows: &[Row], test: &str| -> Vec<f64> {
        rows.iter().filter(|r| r.test == test).map(|r| r.tokens_per_second).collect()
    };
    let mut tests: Vec<&str> = Vec::new();
    for row in base.iter().chain(other) {
        if !tests.contains(&row.test.as_str()) {
            tests.push(&row.test);
        }
    }
    let mut compared = Vec::new();
    for test in tests {
        let (a, b) = (speeds(base, test), speeds(other, test));
        if a.len() != b.len() {
            bail!(
                "{test} has {} runs in the one file and {} in the other: they cannot be paired",
                a.len(),
                b.len()
            );
        }
        let ratios: Vec<f64> = a.iter().zip(&b).map(|(a, b)| b / a).collect();
        let interval = interval(&ratios);
        let verdict = match interval {
            None => "one pair says nothing of the spread",
            Some(i) if i.low > 1.0 => "faster",
            Some(i) if i.high < 1.0 => "slower",
            Some(_) => "within spread",
        };
        let (base, other) = (Arm::of(&a), Arm::of(&b));
        let test = test.to_owned();
        compared.push(Compared {
            test,
            base,
            other,
            median_ratio: median(&ratios),
            ratios,
            interval,
            verdict,
        });
    }
    if compared.is_empty() {
        bail!("neither file has a run");
    }
    Ok(compared)
}

fn table(compared: &[Compared]) -> String {
    let mut out = String::new();
    for c in compared {
        let arm = |name: &str, a: &Arm| {
            format!("  {name}  median {:>9.1}   {:.1} - {:.1} tok/s\n", a.median, a.slowest, a.fastest)
        };
        let _ = writeln!(out, "{}, {} pairs", c.test, c.ratios.len());
        out += &arm("A", &c.base);
        out += &arm("B", &c.other);
        let ratios: Vec<_> = c.ratios.iter().map(|r| format!("{r:.3}")).collect();
        let _ = writeln!(out, "  B/A of each pair: {}", ratios.join(" "));
        let bounds = c.interval.map_or(String::new(), |i| {
            format!(
                ", mean {:.3}, 95 % within {:.3} - {:.3}, lower bound {:.3}",
                i.mean, i.low, i.high, i.lower
            )
        });
        let _ = writeln!(out, "  B/A median {:.3}{bounds}: {}", c.median_ratio, c.verdict);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(test: &str, speeds: &[f64]) -> Vec<Row> {
        speeds.iter().map(|&s| Row { test: test.to_owned(), tokens_per_second: s }).collect()
    }

    #[track_caller]
    fn check(a: &[f64], b: &[f64], verdict: &str) {
        assert_eq!(compare(&rows("tg128", a), &rows("tg128", b)).unwrap()[0].verdict, verdict);
    }

    #[test]
    fn verdicts() {
        check(&[100.0, 101.0, 99.0], &[120.0, 121.0, 119.0], "faster");
        check(&[120.0, 121.0, 119.0], &[100.0, 101.0, 99.0], "slower");
        check(&[100.0, 120.0, 90.0], &[104.0, 95.0, 110.0], "within spread");
        // The machine drifts twofold; the pairs agree all the same.
        check(&[100.0, 200.0, 150.0, 120.0], &[111.0, 219.0, 166.0, 131.0], "faster");
        check(&[100.0], &[200.0], "one pair says nothing of the spread");
    }

    #[test]
    fn runs_that_cannot_be_paired_are_an_error() {
        let error = |a: &[Row], b: &[Row]| compare(a, b).unwrap_err().to_string();
        let (one, two) = (rows("pp512", &[1.0]), rows("pp512", &[1.0, 2.0]));
        assert!(error(&one, &two).contains("pp512 has 1 runs in the one file and 2 in the other"));
        assert!(error(&one, &rows("tg128", &[1.0])).contains("0 in the other"));
        assert!(error(&[], &[]).contains("neither file has a run"));
    }

    #[test]
    fn the_table_has_every_pair() {
        let table =
            table(&compare(&rows("pp512", &[100.0, 200.0]), &rows("pp512", &[150.0, 300.0])).unwrap());
        assert!(table.contains("pp512, 2 pairs") && table.contains("1.500 1.500"), "{table}");
        assert!(table.contains("A  median     150.0   100.0 - 200.0 tok/s"), "{table}");
    }
}
