//! An expression as a list of rows: which rows of which tensors, in which order.

use portolan_device::DType;

use crate::{Checkpoint, Encoding, Expr, Resolved, Result, WeightError};

/// `len` rows of a source, from `first` in steps of `step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Index into [`RowMap::sources`].
    pub(crate) source: usize,
    pub(crate) first: usize,
    pub(crate) step: usize,
    pub(crate) len: usize,
    /// Elements a row. A vector of plain elements is rows of one.
    pub(crate) k: usize,
    /// Whether the source holds plain elements, so that its rows can be cut and joined.
    pub(crate) plain: bool,
    /// Decoded to this, where it is not kept as stored.
    pub(crate) convert: Option<DType>,
}

/// A resolved expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowMap {
    pub(crate) shape: Vec<usize>,
    pub(crate) encoding: Encoding,
    pub(crate) runs: Vec<Run>,
    /// Names of the tensors read, each once.
    pub(crate) sources: Vec<String>,
}

impl RowMap {
    /// Elements a row of the result; 1 for a vector.
    pub(crate) fn k(&self) -> usize {
        self.runs.first().map_or(1, |run| run.k)
    }

    /// Rows of the result.
    pub(crate) fn rows(&self) -> usize {
        self.runs.iter().map(|run| run.len).sum()
    }

    pub(crate) fn resolved(&self) -> Resolved {
        let bytes = self.rows() * self.encoding.row_bytes_total(self.k());
        Resolved { shape: self.shape.clone(), encoding: self.encoding, bytes, sources: self.sources.clone() }
    }
}

/// Names of the tensors that an expression reads.
pub(crate) fn source_names<'a>(expr: &'a Expr, names: &mut Vec<&'a str>) {
    match expr {
        Expr::Source(name) => names.push(name),
        Expr::Concat(parts) | Expr::Stack(parts) => parts.iter().for_each(|p| source_names(p, names)),
        Expr::UnpermuteHeads { of, .. } | Expr::Rows { of, .. } | Expr::Dequantize { of, .. } => {
            source_names(of, names);
        }
    }
}

/// Names that an expression reads and the checkpoint lacks.
pub(crate) fn missing_names(expr: &Expr, checkpoint: &Checkpoint) -> Vec<String> {
    let mut names = Vec::new();
    source_names(expr, &mut names);
    names.into_iter().filter(|n| !checkpoint.contains(n)).map(str::to_owned).collect()
}

/// The error that lists tensors which the checkpoint lacks.
pub(crate) fn missing_error(checkpoint: &Checkpoint, mut tensors: Vec<String>) -> WeightError {
    tensors.sort();
    tensors.dedup();
    // The end of a name (`q_proj.weight`) stays the same where a prefix differs.
    let tail = |name: &str| name.rsplitn(3, '.').take(2).map(str::to_owned).collect::<Vec<_>>();
    let near = match tensors.first().map(|name| tail(name)) {
        Some(wanted) if wanted.len() == 2 => {
            checkpoint.tensors.keys().filter(|name| tail(name) == wanted).take(3).cloned().collect()
        }
        _ => Vec::new(),
    };
    WeightError::MissingTensors { path: checkpoint.path.clone(), tensors, near }
}

/// Resolves an expression; `weight` names it in errors.
pub(crate) fn resolve(expr: &Expr, checkpoint: &Checkpoint, weight: &str) -> Result<RowMap> {
    let missing = missing_names(expr, checkpoint);
    if !missing.is_empty() {
        return Err(missing_error(checkpoint, missing));
    }
    let mut sources = Vec::new();
    let rows = walk(expr, checkpoint, &mut sources).map_err(|reason| WeightError::Expr {
        path: checkpoint.path.clone(),
        weight: weight.to_owned(),
        reason,
    })?;
    Ok(RowMap { shape: rows.shape, encoding: rows.encoding, runs: rows.runs, sources })
}

/// The result of a part of an expression.
struct Rows {
    shape: Vec<usize>,
    encoding: Encoding,
    runs: Vec<Run>,
}

impl Rows {
    /// Elements a row by the shape: a vector of plain elements can be cut anywhere.
    fn natural_k(&self) -> usize {
        match self.shape.as_slice() {
            [] | [_] if !self.encoding.is_quantized() => 1,
            [] => 1,
            [.., k] => *k,
        }
    }

    /// Cuts or joins rows so that every run has rows of the natural length.
    fn regrain(mut self) -> Result<Self, String> {
        let k = self.natural_k();
        for run in &mut self.runs {
            if run.k == k {
                continue;
            }
            let whole = |rows: usize| {
                (run.plain && k > 0 && (rows * run.k).is_multiple_of(k)).then(|| rows * run.k / k)
            };
            match (run.step, whole(run.first), whole(run.len)) {
                (1, Some(first), Some(len)) => *run = Run { first, len, k, ..*run },
                _ => return Err(format!("rows of {} elements cannot be taken as rows of {k}", run.k)),
            }
        }
        Ok(self)
    }
}

fn walk(expr: &Expr, checkpoint: &Checkpoint, sources: &mut Vec<String>) -> Result<Rows, String> {
    match expr {
        Expr::Source(name) => {
            let tensor = checkpoint.get(name).ok_or_else(|| format!("tensor '{name}' is missing"))?;
            let source = sources.iter().position(|s| s == name).unwrap_or_else(|| {
                sources.push(name.clone());
                sources.len() - 1
            });
            let mut rows = Rows { shape: tensor.shape.clone(), encoding: tensor.encoding, runs: Vec::new() };
            let k = rows.natural_k();
            let len = if tensor.shape.len() <= 1 && k == 1 { tensor.elements() } else { tensor.rows() };
            let plain = !tensor.encoding.is_quantized();
            push(&mut rows.runs, Run { source, first: 0, step: 1, len, k, plain, convert: None });
            Ok(rows)
        }
        Expr::Concat(parts) => {
            let parts = all(parts, checkpoint, sources, "concat")?;
            let Some(first) = parts.first() else { return Err("concat of nothing".to_owned()) };
            let Some((_, inner)) = first.shape.split_first() else {
                return Err("concat of scalars".to_owned());
            };
            let mut shape = vec![0];
            shape.extend_from_slice(inner);
            for part in &parts {
                match part.shape.split_first() {
                    Some((n, rest)) if rest == inner => shape[0] += n,
                    _ => return Err(format!("concat of shapes {:?} and {:?}", first.shape, part.shape)),
                }
            }
            join(shape, parts)
        }
        Expr::Stack(parts) => {
            let parts = all(parts, checkpoint, sources, "stack")?;
            let Some(first) = parts.first() else { return Err("stack of nothing".to_owned()) };
            if let Some(other) = parts.iter().find(|p| p.shape != first.shape) {
                return Err(format!("stack of shapes {:?} and {:?}", first.shape, other.shape));
            }
            let shape = [&[parts.len()], first.shape.as_slice()].concat();
            join(shape, parts)
        }
        Expr::UnpermuteHeads { of, heads } => unpermute(walk(of, checkpoint, sources)?, *heads),
        Expr::Rows { of, start, len } => {
            let mut rows = walk(of, checkpoint, sources)?.regrain()?;
            let outer = rows.shape.first().copied().unwrap_or(0);
            if start.checked_add(*len).is_none_or(|end| end > outer) {
                return Err(format!(
                    "rows {start}..{} of shape {:?}",
                    start.saturating_add(*len),
                    rows.shape
                ));
            }
            let total: usize = rows.runs.iter().map(|r| r.len).sum();
            if outer > 0 && !total.is_multiple_of(outer) {
                return Err(format!("rows of {} elements cannot be taken as rows of 1", rows.natural_k()));
            }
            let each = total.checked_div(outer).unwrap_or(0);
            rows.runs = slice(&rows.runs, start * each, len * each);
            rows.shape[0] = *len;
            Ok(rows)
        }
        Expr::Dequantize { of, dtype } => {
            let mut rows = walk(of, checkpoint, sources)?;
            if !dtype.is_float() {
                return Err(format!("dequantize to {dtype}, which is no float"));
            }
            if rows.encoding == Encoding::Dense(*dtype) {
                return Ok(rows);
            }
            for run in &mut rows.runs {
                // Through f32 nothing was lost; through a narrower type a second rounding would be hidden.
                if run.convert.is_some_and(|through| through != DType::F32) {
                    return Err("dequantize of what was already rounded".to_owned());
                }
                run.convert = Some(*dtype);
            }
            rows.encoding = Encoding::Dense(*dtype);
            Ok(rows)
        }
    }
}

/// The parts, which must agree in encoding.
fn all(
    parts: &[Expr],
    checkpoint: &Checkpoint,
    sources: &mut Vec<String>,
    what: &str,
) -> Result<Vec<Rows>, String> {
    let mut done: Vec<Rows> = Vec::with_capacity(parts.len());
    for part in parts {
        let rows = walk(part, checkpoint, sources)?;
        if let Some(first) = done.first()
            && first.encoding != rows.encoding
        {
            return Err(format!("{what} of encodings {} and {}", first.encoding, rows.encoding));
        }
        done.push(rows);
    }
    Ok(done)
}

fn join(shape: Vec<usize>, parts: Vec<Rows>) -> Result<Rows, String> {
    let encoding = parts.first().map_or(Encoding::Dense(DType::F32), |p| p.encoding);
    let mut rows = Rows { shape, encoding, runs: Vec::new() };
    let mut runs = parts.into_iter().flat_map(|p| p.runs).collect::<Vec<_>>();
    // Runs of one row length need no change, be it the natural one or not.
    if runs.windows(2).any(|pair| pair[0].k != pair[1].k) || rows.shape.len() > 1 {
        rows.runs = std::mem::take(&mut runs);
        rows = rows.regrain()?;
        runs = std::mem::take(&mut rows.runs);
    }
    for run in runs {
        push(&mut rows.runs, run);
    }
    Ok(rows)
}

fn unpermute(rows: Rows, heads: usize) -> Result<Rows, String> {
    let rows = rows.regrain()?;
    let total: usize = rows.runs.iter().map(|r| r.len).sum();
    let head = total.checked_div(heads).unwrap_or(0);
    if rows.shape.len() > 2 || head * heads != total || !head.is_multiple_of(2) {
        return Err(format!("shape {:?} has no {heads} heads of an even number of rows", rows.shape));
    }
    let mut runs = Vec::new();
    for start in (0..total).step_by(head.max(1)) {
        let of_head: Vec<Run> = slice(&rows.runs, start, head).into_iter().flat_map(singles).collect();
        for run in of_head.iter().step_by(2).chain(of_head.iter().skip(1).step_by(2)) {
            push(&mut runs, *run);
        }
    }
    Ok(Rows { runs, ..rows })
}

/// A run, row by row.
fn singles(run: Run) -> impl Iterator<Item = Run> {
    (0..run.len).map(move |i| Run { first: run.first + i * run.step, step: 1, len: 1, ..run })
}

/// Rows `start..start + len` of what the runs come to.
pub(crate) fn slice(runs: &[Run], start: usize, len: usize) -> Vec<Run> {
    let (mut at, end) = (0, start + len);
    let mut out = Vec::new();
    for run in runs {
        let (from, to) = (start.max(at), end.min(at + run.len));
        if from < to {
            out.push(Run { first: run.first + (from - at) * run.step, len: to - from, ..*run });
        }
        at += run.len;
    }
    out
}

/// Appends a run, as a part of the last one where it goes on in the same step.
fn push(runs: &mut Vec<Run>, run: Run) {
    if run.len == 0 && !runs.is_empty() {
        return;
    }
    if let Some(last) = runs.last_mut()
        && (last.source, last.k, last.convert) == (run.source, run.k, run.convert)
        && run.first > last.first
    {
        let step = if last.len == 1 { run.first - last.first } else { last.step };
        let follows = run.first == last.first + step * last.len;
        if follows && (run.len == 1 || run.step == step) {
            *last = Run { step, len: last.len + run.len, ..*last };
            return;
        }
    }
    runs.push(run);
}
