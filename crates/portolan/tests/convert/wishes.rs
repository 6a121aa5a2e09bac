//! Bits of single modules, rows that no group divides, shards.

use portolan::{
    tools::convert::{ConvertOptions, Keep},
    weights::Checkpoint,
};
use portolan_testkit::tiny as testkit_tiny;

use crate::{IDS, affine, config, convert, encoding, exact, files, options, scratch, tiny};

#[test]
fn modules_may_have_bits_of_their_own() {
    let folder = scratch();
    let made = folder.path().join("made");
    let keep = ["self_attn=6", "layers.0=16", "lm_head=8", "layers.0.mlp.up_proj.weight=3"];
    convert(&tiny("llama"), &made, &options(Some(4), Some(32), None, &keep)).unwrap();
    let check = |module: &str, expected: &str| {
        assert_eq!(encoding(&made, &format!("{module}.weight")), expected, "{module}");
    };
    check("lm_head", "affine8-g32-bf16");
    check("model.embed_tokens", "affine4-g32-bf16");
    check("model.layers.0.mlp.up_proj", "affine3-g32-bf16");
    check("model.layers.0.mlp.down_proj", "bf16");
    check("model.layers.0.self_attn.q_proj", "bf16");
    check("model.layers.1.self_attn.q_proj", "affine6-g32-bf16");
    check("model.layers.1.mlp.gate_proj", "affine4-g32-bf16");
    let quantization = &config(&made)["quantization"];
    assert_eq!(quantization["bits"], 4);
    assert_eq!(quantization["lm_head"]["bits"], 8);
    assert_eq!(quantization["model.layers.1.self_attn.q_proj"]["bits"], 6);
    assert!(quantization.get("model.layers.0.mlp.down_proj").is_none(), "it is not quantized");
    assert!(exact(&made, &IDS).iter().all(|l| l.is_finite()));
}

#[test]
fn everything_kept_is_a_plain_checkpoint() {
    let folder = scratch();
    let made = folder.path().join("made");
    let keep = ["layers=16", "embed_tokens=16", "lm_head=16"];
    convert(&tiny("llama"), &made, &options(None, None, None, &keep)).unwrap();
    assert!(config(&made).get("quantization").is_none());
    assert!(exact(&made, &IDS) == exact(&tiny("llama"), &IDS));
}

#[test]
fn rows_that_are_no_multiple_of_the_group_stay_plain() {
    let folder = scratch();
    let made = folder.path().join("made");
    // Rows of 64 but for down_proj, whose rows are 128.
    let plan = convert(&tiny("llama"), &made, &affine(4, 128)).unwrap();
    let row = |kind: &str| plan.rows.iter().find(|r| r.kind.ends_with(kind)).unwrap();
    assert_eq!(row("q_proj").note.as_deref(), Some("rows of 64 are no multiple of the group of 128"));
    assert_eq!(row("down_proj").note, None);
    assert_eq!(encoding(&made, "model.layers.0.self_attn.q_proj.weight"), "bf16");
    assert_eq!(encoding(&made, "model.layers.0.mlp.down_proj.weight"), "affine4-g128-bf16");
    assert!(exact(&made, &IDS).iter().all(|l| l.is_finite()));
}

#[test]
fn shards_hold_the_same_model() {
    let folder = scratch();
    let (one, many) = (folder.path().join("one"), folder.path().join("many"));
    convert(&tiny("llama"), &one, &affine(4, 32)).unwrap();
    let mut options = affine(4, 32);
    options.shard_bytes = 30_000;
    let plan = convert(&tiny("llama_sharded"), &many, &options).unwrap();
    assert!(plan.shards() > 3, "{}", plan.shards());
    let names: Vec<String> =
        files(&many).iter().map(|f| f.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    let first = format!("model-00001-of-{:05}.safetensors", plan.shards());
    assert!(
        names.contains(&first) && names.contains(&"model.safetensors.index.json".to_owned()),
        "{names:?}"
    );
    let sizes = files(&many).into_iter().filter(|f| f.extension().unwrap() == "safetensors");
    assert!(sizes.clone().count() == plan.shards());
    assert!(sizes.map(|f| f.metadata().unwrap().len()).all(|n| n < 40_000));
    assert!(exact(&one, &IDS) == exact(&many, &IDS));
}

#[test]
fn texts_are_carried_along() {
    let folder = scratch();
    let (source, made) = (folder.path().join("source"), folder.path().join("made"));
    std::fs::create_dir_all(source.join("additional_chat_templates")).unwrap();
    testkit_tiny::copy_with_text("llama", &source);
    for (file, text) in
        [("chat_template.jinja", "x"), ("additional_chat_templates/rag.jinja", "y"), ("notes.txt", "z")]
    {
        std::fs::write(source.join(file), text).unwrap();
    }
    let plan = convert(&source, &made, &ConvertOptions::default()).unwrap();
    assert_eq!(plan.no_tokenizer, None);
    let carried =
        ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"];
    for file in carried.into_iter().chain(["additional_chat_templates/rag.jinja"]) {
        assert_eq!(
            std::fs::read(made.join(file)).unwrap(),
            std::fs::read(source.join(file)).unwrap(),
            "{file}"
        );
    }
    assert!(!made.join("notes.txt").exists());
    assert_eq!(Checkpoint::open(&made).unwrap().metadata["format"], "mlx");
}

/// A configuration may call a model tied that has an output matrix of its own: the files count, and the result says so.
#[test]
fn an_output_matrix_that_is_there_is_written() {
    let folder = scratch();
    let (source, made) = (folder.path().join("source"), folder.path().join("made"));
    std::fs::create_dir(&source).unwrap();
    testkit_tiny::copy("llama", &source);
    testkit_tiny::edit_config(&source, |c| drop(c.insert("tie_word_embeddings".into(), true.into())));
    convert(&source, &made, &affine(8, 32)).unwrap();
    assert_eq!(config(&made)["tie_word_embeddings"], false);
    assert_eq!(encoding(&made, "lm_head.weight"), "affine8-g32-bf16");
    convert(&tiny("llama_tied"), &folder.path().join("tied"), &affine(8, 32)).unwrap();
    assert_eq!(config(&folder.path().join("tied"))["tie_word_embeddings"], true);
}

#[test]
fn keep_is_read() {
    #[track_caller]
    fn check(text: &str, expected: Option<(&str, u8)>) {
        let found = text.parse::<Keep>();
        assert_eq!(found.as_ref().ok().map(|k| (k.module.as_str(), k.bits)), expected, "{text:?}: {found:?}");
    }
    check("lm_head=8", Some(("lm_head", 8)));
    check("model.layers.0.mlp=16", Some(("model.layers.0.mlp", 16)));
    check("lm_head.weight=4", Some(("lm_head", 4)));
    for bad in
        ["lm_head", "=8", "lm_head=", "lm_head=7", "lm_head=1", "lm_head=0", "lm_head=x", "lm_head=-4", ""]
    {
        check(bad, None);
    }
}
