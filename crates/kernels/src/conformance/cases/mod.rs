//! The cases of each op: its types, encodings, awkward sizes.

mod attention;
mod matmul;
mod rows;
pub mod steps;
pub mod weights;

use super::{
    host::{Case, Step, Value},
    rng::Rng,
};
use crate::{Op, OpKind, RowSet, StepShape, ValueInfo, ValueType};

/// Row counts: one, few, around the sizes of vectors and tiles, and odd ones.
pub const ROWS: [usize; 7] = [1, 2, 3, 5, 16, 17, 33];

/// The cases of an op.
pub fn of(op: OpKind) -> Vec<Case> {
    match op {
        OpKind::Embed => rows::embed(),
        OpKind::RmsNorm => rows::rms_norm(),
        OpKind::Matmul => matmul::matmul(),
        OpKind::RopeTable => rows::rope_table(),
        OpKind::Rope => rows::rope(),
        OpKind::CacheAppend => attention::cache_append(),
        OpKind::Attention => attention::attention(),
        OpKind::Activate => rows::activate(),
        OpKind::Add => rows::two_inputs(&Op::Add),
        OpKind::Mul => rows::two_inputs(&Op::Mul),
        OpKind::SelectRows => rows::select_rows(),
        OpKind::QuantizeRows => rows::quantize_rows(),
        OpKind::Argmax => rows::argmax(),
        OpKind::AddRmsNorm => rows::add_rms_norm(),
        OpKind::GateUp => matmul::gate_up(),
        OpKind::RopeAppend => attention::rope_append(),
        OpKind::Qkv => matmul::qkv(),
        OpKind::NormRopeAppend => attention::norm_rope_append(),
    }
}

/// A value of numbers in `-1..1`.
fn value(rng: &mut Rng, rows: usize, cols: usize, dtype: ValueType) -> Value {
    Value { info: ValueInfo { rows: RowSet::Tokens, cols, dtype }, numbers: rng.units(rows * cols) }
}

/// A value that is made.
fn made(cols: usize, dtype: ValueType) -> ValueInfo {
    ValueInfo { rows: RowSet::Tokens, cols, dtype }
}

/// A case of `rows` rows of one sequence that needs no step data.
fn case(name: String, op: Op, rows: usize, inputs: Vec<Value>, outputs: Vec<ValueInfo>) -> Case {
    Case {
        name,
        op,
        shape: StepShape { rows, selected: 0, seqs: 1, kv: 0 },
        inputs,
        weights: Vec::new(),
        cache: None,
        outputs,
        step: Step::default(),
        magnitude: 0.0,
    }
}

/// The same case over the rows that want logits.
fn selected(mut case: Case) -> Case {
    case.shape.selected = case.shape.rows;
    case.shape.rows += 2;
    case.step.select = (0..case.shape.selected as i32).collect();
    for x in &mut case.inputs {
        x.info.rows = RowSet::Selected;
    }
    for y in &mut case.outputs {
        y.rows = RowSet::Selected;
    }
    case
}
