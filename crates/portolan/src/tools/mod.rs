//! What the program's commands do, for programs that want the same: logits of a prompt, traces of logits and their
//! comparison, benchmarks, a look into a checkpoint.

pub mod bench;
pub mod compare;
pub mod inspect;
pub mod logits;
pub mod trace;
