//! Any bytes as a file `m.gguf`: an error that names it, or a checkpoint whose tensors can be read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portolan_fuzz::{Place, open_and_read};

thread_local! {
    static PLACE: Place = Place::default();
}

fuzz_target!(|bytes: &[u8]| PLACE.with(|place| open_and_read(place, "m.gguf", bytes)));
