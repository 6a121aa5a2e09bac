//! What the program's commands do, for programs that want the same: logits of a prompt, traces of logits and their
//! comparison, benchmarks, a look into a checkpoint, and its conversion.

pub mod bench;
pub mod compare;
pub mod convert;
pub mod inspect;
pub mod logits;
pub mod trace;
