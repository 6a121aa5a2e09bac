//! What the program's commands do, for programs that want the same: logits of a prompt, benchmarks, a look into a
//! checkpoint.

pub mod bench;
pub mod inspect;
pub mod logits;
