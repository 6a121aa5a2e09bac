//! Tensors that contradict the configuration, files larger than any memory, files that change under the program.

use std::{
    fs::{self, File},
    io::Write,
};

use portolan::{Core, Error, Plan};
use portolan_testkit::{fixture::Safetensors, tiny};
use serde_json::{Map, Value, json};

use crate::support::{cpu, options, step};

/// A model without a vocabulary would have no logits.
#[test]
fn an_embedding_without_rows() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    tiny::copy("llama", folder);
    let file = tiny::edited_tensors(folder, |tensor| {
        if ["model.embed_tokens.weight", "lm_head.weight"].contains(&tensor.name) {
            (tensor.shape, tensor.bytes) = (vec![0, 64], Vec::new());
        }
        true
    });
    file.write(folder.join("model.safetensors"));
    tiny::edit_config(folder, |config| drop(config.remove("vocab_size")));
    let device = cpu();
    let error = step(&device, folder).unwrap_err().to_string();
    for part in ["vocab_size", "model.embed_tokens.weight of 0 rows", folder.to_str().unwrap()] {
        assert!(error.contains(part), "'{error}' does not say '{part}'");
    }
}

/// Fewer layers than the weights have would run, and talk nonsense; more are missed by name.
#[test]
fn layers_against_the_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    tiny::copy("llama", folder);
    let device = cpu();
    let with = |layers: usize, extra: usize| {
        tiny::edit_config(folder, |config| {
            config.insert("num_hidden_layers".to_owned(), layers.into());
            config.insert("num_nextn_predict_layers".to_owned(), extra.into());
        });
        step(&device, folder).map(drop).map_err(|e| e.to_string())
    };
    assert_eq!(with(3, 0), Ok(()));
    let fewer = with(2, 0).unwrap_err();
    assert!(fewer.contains("num_hidden_layers") && fewer.contains("'model.layers.2."), "{fewer}");
    let more = with(4, 0).unwrap_err();
    assert!(more.contains("model.layers.3.mlp.up_proj.weight"), "{more}");
    // A layer that is there to predict further tokens is no fault.
    assert_eq!(with(2, 1), Ok(()));
}

/// A model of 8 TiB, whose file is one hole: refused by the plan, in no time and without memory.
#[test]
fn a_model_that_no_memory_holds() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    tiny::copy("llama_tied", folder);
    const HIDDEN: usize = 1 << 18;
    const VOCAB: usize = 1 << 24;
    tiny::edit_config(folder, |config| {
        for (key, value) in [
            ("hidden_size", HIDDEN),
            ("vocab_size", VOCAB),
            ("intermediate_size", 32),
            ("num_hidden_layers", 1),
            ("num_attention_heads", 2),
            ("num_key_value_heads", 1),
            ("head_dim", 16),
        ] {
            config.insert(key.to_owned(), value.into());
        }
    });
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let tensors = [
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
        (layer("input_layernorm"), vec![HIDDEN]),
        (layer("post_attention_layernorm"), vec![HIDDEN]),
        (layer("self_attn.q_proj"), vec![32, HIDDEN]),
        (layer("self_attn.k_proj"), vec![16, HIDDEN]),
        (layer("self_attn.v_proj"), vec![16, HIDDEN]),
        (layer("self_attn.o_proj"), vec![HIDDEN, 32]),
        (layer("mlp.gate_proj"), vec![32, HIDDEN]),
        (layer("mlp.up_proj"), vec![32, HIDDEN]),
        (layer("mlp.down_proj"), vec![HIDDEN, 32]),
    ];
    let mut header = Map::new();
    let mut at = 0;
    for (name, shape) in tensors {
        let bytes = 2 * shape.iter().product::<usize>();
        header.insert(name, json!({"dtype": "BF16", "shape": shape, "data_offsets": [at, at + bytes]}));
        at += bytes;
    }
    let header = Value::from(header).to_string();
    let mut file = File::create(folder.join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len((8 + header.len() + at) as u64).unwrap();
    let device = cpu();
    let plan = Plan::new(folder, &device, &options()).unwrap();
    let error = Core::load(&plan, &mut |_, _| panic!("something was read")).map(drop).unwrap_err();
    let Error::DoesNotFit { need, .. } = &error else { panic!("{error:?}") };
    assert!(*need > 8 << 40, "{need}");
    assert!(error.to_string().contains(folder.to_str().unwrap()), "{error}");
}

/// Weights that shrink after the plan was made, on the way that a user's program takes.
#[test]
fn a_file_that_is_cut_between_plan_and_load() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    tiny::copy("llama", folder);
    let path = folder.join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    let device = cpu();
    let plan = Plan::new(folder, &device, &options()).unwrap();
    for keep in [0, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..keep]).unwrap();
        let error = Core::load(&plan, &mut |_, _| ()).map(drop).unwrap_err().to_string();
        assert!(error.contains("model.safetensors") && error.contains("load it again"), "{keep}: {error}");
    }
    fs::write(&path, &whole).unwrap();
    Core::load(&plan, &mut |_, _| ()).map(drop).unwrap();
    // Another model under the old name: its numbers are not what the header said, but no read is out of bounds.
    Safetensors::new().f32("w", &[1 << 16], &vec![0.5; 1 << 16]).write(&path);
    if let Err(error) = Core::load(&plan, &mut |_, _| ()).map(drop) {
        assert!(error.to_string().contains("model.safetensors"), "{error}");
    }
}
