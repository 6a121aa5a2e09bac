//! Sources, destinations and wishes that are wrong: an error that says what, and nothing left behind.

use std::{ops::ControlFlow, path::Path};

use portolan::{
    Error,
    tools::convert::{ConvertOptions, ConvertPlan, QuantMode},
};
use portolan_testkit::tiny as testkit_tiny;

use crate::{affine, convert, options, scratch, tiny};

/// Names in a folder.
fn entries(folder: &Path) -> Vec<String> {
    let all = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = all.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[track_caller]
fn refused(source: &Path, destination: &Path, options: &ConvertOptions, parts: &[&str]) -> Error {
    let error = convert(source, destination, options).err().expect("it is refused");
    let text = error.to_string();
    parts.iter().for_each(|part| assert!(text.contains(part), "'{text}' does not say '{part}'"));
    error
}

#[test]
fn destinations_that_cannot_be() {
    let folder = scratch();
    let path = |name: &str| folder.path().join(name);
    let usual = ConvertOptions::default();
    std::fs::create_dir(path("full")).unwrap();
    std::fs::write(path("full/file"), "x").unwrap();
    std::fs::write(path("file"), "x").unwrap();
    std::fs::create_dir(path("source")).unwrap();
    testkit_tiny::copy("llama", &path("source"));
    std::os::unix::fs::symlink(path("nowhere"), path("link")).unwrap();
    let before = entries(folder.path());
    let check = |name: &str, parts: &[&str]| {
        let error = refused(&path("source"), &path(name), &usual, parts);
        assert!(matches!(error, Error::Destination { .. }), "{error:?}");
        assert!(error.to_string().contains(path(name).to_str().unwrap()), "{error}");
    };
    check("full", &["not empty (1 entries)", "choose another folder"]);
    check("file", &["a file of this name"]);
    check("link", &["a link"]);
    check("source", &["not empty"]);
    check("source/made", &["within the source", "choose another folder"]);
    check("no/such/parent", &["No such file", "Make it"]);
    check("file/made", &["Not a directory"]);
    refused(&path("source"), Path::new("/proc/portolan-made"), &usual, &["no folder can be made in /proc"]);
    refused(&path("source"), Path::new(".."), &usual, &["does not name a folder"]);
    assert_eq!(entries(folder.path()), before);
    assert_eq!(entries(&path("source")), ["config.json", "model.safetensors"]);
    // A file beside the destination is no folder that the destination lies in, and an empty folder may be filled.
    std::fs::create_dir(path("empty")).unwrap();
    convert(&path("source"), &path("empty"), &usual).unwrap();
    convert(&path("source/model.safetensors"), &path("source/made"), &usual).unwrap();
}

#[test]
fn wishes_that_mlx_has_no_form_for() {
    let folder = scratch();
    let check = |options: ConvertOptions, parts: &[&str]| {
        refused(&tiny("llama"), &folder.path().join("made"), &options, parts);
        assert!(entries(folder.path()).is_empty());
    };
    for bits in [0, 1, 7, 9, 16, 255] {
        check(options(Some(bits), None, None, &[]), &["bits", &bits.to_string(), "2, 3, 4, 5, 6 or 8"]);
    }
    for group in [0, 16, 63, 256, 65535] {
        check(options(None, Some(group), None, &[]), &["group size", &group.to_string(), "32, 64 or 128"]);
    }
    let mxfp4 = Some(QuantMode::MxFp4);
    check(options(Some(8), None, mxfp4, &[]), &["8", "mxfp4"]);
    check(options(None, Some(64), mxfp4, &[]), &["64", "mxfp4"]);
    check(
        options(None, None, None, &["experts=8"]),
        &["experts", "no such matrix", "layers.*.mlp.up_proj", "lm_head"],
    );
    // A part of a word is no part of a path.
    check(options(None, None, None, &["head=8"]), &["head", "no such matrix"]);
    let mut none = ConvertOptions::default();
    none.shard_bytes = 0;
    check(none, &["shard size"]);
    assert!("int4".parse::<QuantMode>().unwrap_err().contains("affine or mxfp4"));
}

#[test]
fn a_tied_output_matrix_is_named() {
    let folder = scratch();
    let keep = options(None, None, None, &["lm_head=8"]);
    refused(&tiny("llama_tied"), &folder.path().join("made"), &keep, &["its output matrix is embed_tokens"]);
}

#[test]
fn sources_that_cannot_be_converted() {
    let folder = scratch();
    let (source, made) = (folder.path().join("source"), folder.path().join("made"));
    std::fs::create_dir(&source).unwrap();
    let name = "model.layers.1.mlp.up_proj.weight";
    let check = |edit: &dyn Fn(Vec<u8>) -> (&'static str, Vec<u8>), parts: &[&str]| {
        testkit_tiny::copy("llama", &source);
        let mut file = portolan_testkit::fixture::Safetensors::new();
        let of = portolan_testkit::Tensors::open(source.join("model.safetensors"));
        for tensor in of.names() {
            let (mut dtype, mut bytes) = (of.dtype(&tensor), of.bytes(&tensor));
            if tensor == name {
                let (new, edited) = edit(bytes);
                (dtype, bytes) = (new.to_owned(), edited);
            }
            file = file.tensor(&tensor, &dtype, &of.shape(&tensor), &bytes);
        }
        file.write(source.join("model.safetensors"));
        refused(&source, &made, &affine(4, 32), parts);
        assert_eq!(entries(folder.path()), ["source"]);
    };
    let half = |bytes: Vec<u8>| bytes[..bytes.len() / 2].to_vec();
    check(&|bytes| ("F8_E4M3", half(bytes)), &[name, "f8_e4m3", "f32, f16 or bf16"]);
    check(&|bytes| ("U16", bytes), &[name, "u16"]);
    check(&|bytes| ("F4X9", bytes), &[name, "F4X9", "not read"]);
    // Row 3, column 5 is NaN: bf16 0x7fc0.
    let nan = |mut bytes: Vec<u8>| {
        bytes[2 * (3 * 64 + 5)..][..2].copy_from_slice(&[0xc0, 0x7f]);
        ("BF16", bytes)
    };
    check(&nan, &[name, "row 3, column 5", "NaN", "not finite", "=16"]);
    // Other families, and what is no checkpoint.
    testkit_tiny::copy("llama", &source);
    testkit_tiny::edit_config(&source, |c| drop(c.insert("model_type".into(), "mixtral".into())));
    refused(&source, &made, &affine(4, 32), &["mixtral", "not supported"]);
    refused(&folder.path().join("nowhere"), &made, &affine(4, 32), &["no such file"]);
    assert_eq!(entries(folder.path()), ["source"]);
}

#[test]
fn an_interrupted_conversion_leaves_nothing() {
    for after in [1, 3, 20] {
        let folder = scratch();
        let plan = ConvertPlan::new(&tiny("llama"), &folder.path().join("made"), &affine(4, 32)).unwrap();
        assert!(entries(folder.path()).is_empty(), "a plan writes nothing");
        let mut calls = 0;
        let error = plan.run(&mut |_, _| {
            calls += 1;
            if calls < after { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        let error = error.unwrap_err();
        assert!(matches!(error, Error::Interrupted { .. }), "{error:?}");
        assert!(entries(folder.path()).is_empty(), "{:?}", entries(folder.path()));
    }
}

#[test]
fn a_disk_that_is_too_small_is_seen_before_the_first_byte() {
    let folder = scratch();
    let mut plan = ConvertPlan::new(&tiny("llama"), &folder.path().join("made"), &affine(4, 32)).unwrap();
    let need = plan.disk_bytes;
    assert!(plan.free_bytes.is_some() && need > plan.bytes_out);
    plan.free_bytes = Some(need - 1);
    let error = plan.run(&mut |_, _| panic!("nothing is written")).unwrap_err();
    assert!(
        matches!(error, Error::NoRoomOnDisk { need: n, free, .. } if n == need && free == need - 1),
        "{error:?}"
    );
    assert!(entries(folder.path()).is_empty());
}

/// The source is cut short between plan and conversion.
#[test]
fn a_source_that_shrinks_is_told_apart_from_a_full_disk() {
    let folder = scratch();
    let (source, made) = (folder.path().join("source"), folder.path().join("made"));
    std::fs::create_dir(&source).unwrap();
    testkit_tiny::copy("llama", &source);
    let plan = ConvertPlan::new(&source, &made, &affine(4, 32)).unwrap();
    let file = std::fs::File::options().write(true).open(source.join("model.safetensors")).unwrap();
    file.set_len(100_000).unwrap();
    let error = plan.run(&mut |_, _| ControlFlow::Continue(())).unwrap_err().to_string();
    assert!(error.contains("model.safetensors") && error.contains("before the end of the file"), "{error}");
    assert_eq!(entries(folder.path()), ["source"]);
}
