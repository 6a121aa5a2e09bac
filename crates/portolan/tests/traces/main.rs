//! Logit traces: what they hold, how they go through a file, and what a comparison of two says.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod file;
mod gates;
mod models;

use portolan::tools::{
    compare::CompareOptions,
    trace::{Recorder, Trace, TraceHeader},
};

const VOCAB: usize = 64;
const NEXT: usize = 60;

/// A row in which token 0 leads all others by `margin`, and the true next token is 60.
fn row(margin: f32) -> Vec<f32> {
    let mut row = vec![0.0; VOCAB];
    (row[0], row[2], row[NEXT]) = (margin, -1.0, -6.0);
    row
}

fn header(positions: usize) -> TraceHeader {
    let mut header = TraceHeader::default();
    (header.vocab, header.positions) = (VOCAB, positions);
    (header.model, header.checkpoint_sha256) = ("model".into(), "abc".into());
    (header.arguments.width, header.arguments.top, header.arguments.window) = (1, 16, positions);
    header
}

fn record(header: TraceHeader, rows: &[Vec<f32>], full: bool) -> Trace {
    let rows_of_context = header.arguments.context_before + 1;
    let tokens = vec![NEXT as u32; rows_of_context + header.positions];
    let mut recorder = Recorder::new(header, tokens, full).unwrap();
    rows.iter().for_each(|row| recorder.push(row).unwrap());
    recorder.finish().unwrap()
}

fn of_rows(rows: &[Vec<f32>]) -> Trace {
    record(header(rows.len()), rows, true)
}

fn options(error: f32) -> CompareOptions {
    let mut options = CompareOptions::default();
    options.error = error;
    options
}
