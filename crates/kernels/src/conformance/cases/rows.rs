//! Cases of the ops that work row by row.

use std::sync::Arc;

use super::{
    ROWS, case, made, selected, value,
    weights::{DENSE, encodings, random, shortest_row},
};
use crate::{
    Activation, Op, RopeStyle, RowCodes, RowSet, ValueType,
    conformance::{
        host::{Case, Value},
        rng::Rng,
    },
    rope::{Llama3, RopeFrequencies, Yarn},
};

/// Columns: one, less than a vector, odd, whole vectors, a model's.
const COLUMNS: [usize; 8] = [1, 7, 16, 33, 64, 100, 576, 1536];
/// Sizes of a head.
pub(super) const HEAD_DIMS: [usize; 6] = [16, 32, 64, 80, 96, 128];

/// A value with rows of zeros, of small and of large numbers among others.
fn uneven(rng: &mut Rng, rows: usize, cols: usize) -> Value {
    let mut value = value(rng, rows, cols, ValueType::Activation);
    for (i, row) in value.numbers.chunks_mut(cols.max(1)).enumerate() {
        let factor = [1.0, 0.0, 1e-3, 30.0][i % 4];
        row.iter_mut().for_each(|x| *x *= factor);
    }
    value
}

/// Calls `f` with every row count and column count, and an index.
fn over_sizes(mut f: impl FnMut(usize, usize, usize) -> Case) -> Vec<Case> {
    let mut cases = Vec::new();
    for rows in [0].into_iter().chain(ROWS) {
        for cols in COLUMNS {
            cases.push(f(rows, cols, cases.len()));
        }
    }
    cases
}

pub(super) fn embed() -> Vec<Case> {
    let mut cases = Vec::new();
    for encoding in encodings() {
        for (vocab, multiple, rows) in [(1, 1, 1), (7, 3, 5), (50, 2, 33), (9, 1, 0)] {
            let k = if encoding.is_quantized() { shortest_row(encoding) * multiple } else { 13 * multiple };
            let name = format!("{encoding} vocab={vocab} dim={k} rows={rows}");
            let mut rng = Rng::named(&name);
            let mut case = case(name, Op::Embed, rows, Vec::new(), vec![made(k, ValueType::Activation)]);
            case.weights.push(random(&mut rng, encoding, &[vocab, k]));
            case.step.ids = (0..rows).map(|_| rng.below(vocab) as i32).collect();
            if let [first, .., last] = &mut case.step.ids[..] {
                (*first, *last) = (vocab as i32 - 1, 0);
            }
            cases.push(case);
        }
    }
    cases
}

pub(super) fn rms_norm() -> Vec<Case> {
    let mut cases = Vec::new();
    for (width, heads) in [(1, 1), (8, 3), (17, 1), (64, 9), (128, 2), (576, 1), (100, 1)] {
        for rows in [0].into_iter().chain(ROWS) {
            let weight = DENSE[cases.len() % 3];
            let name = format!("width={width} heads={heads} rows={rows} weight={weight}");
            let mut rng = Rng::named(&name);
            let x = uneven(&mut rng, rows, width * heads);
            let op = Op::RmsNorm { width, eps: [1e-5, 1e-6][cases.len() % 2] };
            let mut case = case(name, op, rows, vec![x], vec![made(width * heads, ValueType::Activation)]);
            case.weights.push(random(&mut rng, weight, &[width]));
            cases.push(if cases.len() % 4 == 3 { selected(case) } else { case });
        }
    }
    cases
}

pub(super) fn rope_table() -> Vec<Case> {
    let ropes = [
        ("plain", RopeFrequencies::plain(1e4, 64)),
        ("smallest", RopeFrequencies::plain(1e6, 2)),
        ("linear", RopeFrequencies::linear(1e4, 48, 4.0)),
        ("yarn", RopeFrequencies::yarn(1e6, 128, &Yarn::new(4.0, 32768))),
        ("dynamic", RopeFrequencies::dynamic(1e4, 16, 2.0, 64)),
        ("llama3", {
            let llama3 =
                Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max: 8192 };
            RopeFrequencies::llama3(5e5, 128, &llama3)
        }),
    ];
    let mut cases = Vec::new();
    for (name, rope) in ropes {
        for rows in [0].into_iter().chain(ROWS) {
            let outputs = vec![made(rope.rot(), ValueType::F32)];
            let op = Op::RopeTable { rope: Arc::new(rope.clone()) };
            let mut case = case(format!("{name} rows={rows}"), op, rows, Vec::new(), outputs);
            let positions = [0, 1, 31, 32, 63, 64, 4095, 40_000];
            case.step.positions = (0..rows).map(|i| positions[(i + rows) % 8]).collect();
            cases.push(case);
        }
    }
    cases
}

pub(super) fn rope() -> Vec<Case> {
    let mut cases = Vec::new();
    for head_dim in HEAD_DIMS {
        for (rot, style) in [
            (head_dim, RopeStyle::Halves),
            (head_dim, RopeStyle::Interleaved),
            (head_dim / 2, RopeStyle::Halves),
            (2, RopeStyle::Interleaved),
        ] {
            for rows in [0].into_iter().chain(ROWS) {
                let heads = [1, 3, 8][cases.len() % 3];
                let op = Op::Rope { heads, head_dim, rot, style };
                let name = format!("{style:?} heads={heads}x{head_dim} rot={rot} rows={rows}");
                let mut rng = Rng::named(&name);
                let x = value(&mut rng, rows, heads * head_dim, ValueType::Activation);
                let table = value(&mut rng, rows, rot, ValueType::F32);
                let outputs = vec![made(heads * head_dim, ValueType::Activation)];
                cases.push(case(name, op, rows, vec![x, table], outputs));
            }
        }
    }
    cases
}

pub(super) fn activate() -> Vec<Case> {
    let functions = [Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::Relu2];
    let of = |f: Activation| {
        over_sizes(|rows, cols, _| {
            let name = format!("{f:?} rows={rows} cols={cols}");
            let mut x = uneven(&mut Rng::named(&name), rows, cols);
            x.numbers.iter_mut().for_each(|x| *x *= 4.0);
            let mut case =
                case(name, Op::Activate(f), rows, vec![x], vec![made(cols, ValueType::Activation)]);
            case.magnitude = 0.1;
            case
        })
    };
    functions.into_iter().flat_map(of).collect()
}

pub(super) fn two_inputs(op: &Op) -> Vec<Case> {
    over_sizes(|rows, cols, index| {
        let name = format!("rows={rows} cols={cols}");
        let mut rng = Rng::named(&name);
        let inputs = vec![uneven(&mut rng, rows, cols), uneven(&mut rng, rows, cols)];
        let case = case(name, op.clone(), rows, inputs, vec![made(cols, ValueType::Activation)]);
        if index % 4 == 3 { selected(case) } else { case }
    })
}

pub(super) fn add_rms_norm() -> Vec<Case> {
    over_sizes(|rows, cols, index| {
        let weight = DENSE[index % 3];
        let name = format!("rows={rows} cols={cols} weight={weight}");
        let mut rng = Rng::named(&name);
        let inputs = vec![uneven(&mut rng, rows, cols), uneven(&mut rng, rows, cols)];
        let outputs = vec![made(cols, ValueType::Activation); 2];
        let mut case = case(name, Op::AddRmsNorm { eps: 1e-5 }, rows, inputs, outputs);
        case.weights.push(random(&mut rng, weight, &[cols]));
        if index % 4 == 3 { selected(case) } else { case }
    })
}

pub(super) fn select_rows() -> Vec<Case> {
    over_sizes(|rows, cols, index| {
        let count = if rows == 0 { 0 } else { [0, 1, 2, 9][index % 4] };
        let name = format!("rows={rows} selected={count} cols={cols}");
        let mut rng = Rng::named(&name);
        let x = value(&mut rng, rows, cols, ValueType::Activation);
        let mut output = made(cols, ValueType::Activation);
        output.rows = RowSet::Selected;
        let mut case = case(name, Op::SelectRows, rows, vec![x], vec![output]);
        case.shape.selected = count;
        case.step.select = (0..count).map(|_| rng.below(rows) as i32).collect();
        if let Some(last) = case.step.select.last_mut() {
            *last = rows as i32 - 1;
        }
        case
    })
}

pub(super) fn quantize_rows() -> Vec<Case> {
    [RowCodes::Int8, RowCodes::Int15].into_iter().flat_map(rounded_to).collect()
}

fn rounded_to(how: RowCodes) -> Vec<Case> {
    over_sizes(|rows, cols, index| {
        let name = format!("{how:?} rows={rows} cols={cols}");
        let mut x = uneven(&mut Rng::named(&name), rows, cols);
        // A number far above its group's others.
        if let Some(last) = x.numbers.last_mut() {
            *last = -50.0;
        }
        let case = case(name, Op::QuantizeRows(how), rows, vec![x], vec![made(cols, how.value_type())]);
        if index % 4 == 3 { selected(case) } else { case }
    })
}

pub(super) fn argmax() -> Vec<Case> {
    let mut cases = over_sizes(|rows, cols, _| argmax_case(rows, cols));
    cases.push(argmax_case(3, 49_152));
    cases
}

fn argmax_case(rows: usize, cols: usize) -> Case {
    let name = format!("rows={rows} vocab={cols}");
    let mut rng = Rng::named(&name);
    let mut x = value(&mut rng, rows, cols, ValueType::F32);
    for (i, row) in x.numbers.chunks_mut(cols).enumerate() {
        match i % 6 {
            // Ties, of the largest and of all.
            1 => (row[cols / 2], row[cols - 1]) = (2.0, 2.0),
            2 => row.fill(-3.0),
            // What is no number, alone and among others.
            3 => row.fill(f32::NAN),
            4 => (row[0], row[cols / 3]) = (f32::NAN, f32::NAN),
            5 => row.fill(f32::NEG_INFINITY),
            _ => {}
        }
    }
    selected(case(name, Op::Argmax, rows, vec![x], vec![made(1, ValueType::I32)]))
}

#[cfg(test)]
mod tests {
    use portolan_device::DType;
    use portolan_weights::Encoding;

    use super::*;

    #[test]
    fn names_are_seeds_and_differ() {
        for op in crate::OpKind::ALL {
            let mut names: Vec<String> = super::super::of(op).into_iter().map(|c| c.name).collect();
            let count = names.len();
            assert!(count > 10, "{op} has {count} cases");
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count, "{op}");
        }
    }

    #[test]
    fn weights_are_of_the_order_of_one() {
        for encoding in encodings() {
            let k = shortest_row(encoding) * 2;
            let w = random(&mut Rng::named("order"), encoding, &[9, k]);
            let rms = super::super::weights::rms(&w);
            assert!((0.1..10.0).contains(&rms), "{encoding}: {rms}");
        }
        let dense = random(&mut Rng::named("order"), Encoding::Dense(DType::F32), &[5]);
        assert_eq!((dense.rows(), dense.cols(), dense.is_matrix()), (1, 5, false));
    }
}
