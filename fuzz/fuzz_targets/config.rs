//! A configuration: bytes that begin with `GGUF` are a file of metadata, and all others the text of a `config.json`
//! beside a file of weights. Either is read to its end, and the graph is built for what is a model.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portolan_fuzz::Place;
use portolan_models::{Model, ModelConfig};
use portolan_weights::Checkpoint;

thread_local! {
    static PLACE: Place = with_weights();
}

/// One tensor, so that the folder is a checkpoint. A model of any configuration lacks most of its own.
fn with_weights() -> Place {
    let place = Place::default();
    let header = r#"{"model.embed_tokens.weight":{"dtype":"U8","shape":[4,4],"data_offsets":[0,16]}}"#;
    let length = (header.len() as u64).to_le_bytes();
    place.file("model.safetensors", &[&length, header.as_bytes(), &[0; 16]].concat());
    place
}

fuzz_target!(|bytes: &[u8]| {
    PLACE.with(|place| {
        let path = match bytes.starts_with(b"GGUF") {
            true => place.file("m.gguf", bytes),
            false => {
                place.file("config.json", bytes);
                place.path().to_owned()
            }
        };
        let Ok(checkpoint) = Checkpoint::open(&path) else { return };
        let config = ModelConfig::from_checkpoint(&checkpoint);
        if let Ok(config) = &config {
            assert_eq!((config.windows.len(), config.rotated.len()), (config.layers, config.layers));
            assert!(config.rope.frequencies().inv_freq.iter().all(|f| f.is_finite()));
        }
        match Model::from_checkpoint(&checkpoint) {
            Ok(model) => assert!(!model.graph.nodes.is_empty()),
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains(place.path().to_str().unwrap_or_default()), "'{text}' names no file");
            }
        }
    });
});
