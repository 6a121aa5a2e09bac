//! What the sources may not hold. Each check is a function over a path and its text, so that a broken sample shows that it
//! finds what it is for.

mod backends;
mod cache_key;
mod device_code;
mod lanes;
mod launches;
mod slots;

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::{
    outcome::Outcome,
    tree::{files, read, rust_files, shown},
};

pub(super) fn gate(root: &Path) -> Result<Outcome> {
    let (what, findings) = check(root)?;
    Ok(Outcome::of(what, findings))
}

/// A file's path from the root, and its text.
type Source = (String, String);

fn check(root: &Path) -> Result<(String, Vec<String>)> {
    let (rust, device) = (rust_sources(root)?, device_sources(root)?);
    let findings = findings(&rust, &device);
    let what = format!(
        "{} files of Rust and {} of device code; {} launch sites; empty slots: {}",
        rust.len(),
        device.len(),
        launches::SITES.iter().map(|site| site.2).sum::<usize>(),
        slots::shown(),
    );
    Ok((what, findings))
}

/// What all checks find in these sources.
fn findings(rust: &[Source], device: &[Source]) -> Vec<String> {
    let mut findings = launches::check(rust);
    findings.extend(rust.iter().flat_map(|(path, text)| backends::check(path, text)));
    for (path, text) in device {
        findings.extend(device_code::check(path, text));
        findings.extend(lanes::check(path, text));
    }
    findings.extend(lanes::unused(device));
    findings.extend(cache_key::check(rust));
    findings.extend(slots::check());
    findings
}

fn sources(root: &Path, paths: Vec<PathBuf>) -> Result<Vec<Source>> {
    paths.iter().map(|path| Ok((shown(root, path), read(path)?))).collect()
}

/// The library and program sources of every crate. Those of hip-emu and hip-on-cuda stand for a device, and are left out.
fn rust_sources(root: &Path) -> Result<Vec<Source>> {
    let mut paths = rust_files(&root.join("crates"))?;
    paths.retain(|path| {
        let path = shown(root, path);
        let stands_for_a_device =
            ["crates/hip-emu/", "crates/hip-on-cuda/"].iter().any(|c| path.starts_with(c));
        path.split('/').nth(2) == Some("src") && !stands_for_a_device
    });
    sources(root, paths)
}

/// All device code, but the prelude: it defines for the compile gate what the checks forbid to use.
fn device_sources(root: &Path) -> Result<Vec<Source>> {
    let mut paths = files(&root.join("kernels-cuda"))?;
    paths.extend(files(&root.join("kernels-hip"))?);
    let is_code = |path: &PathBuf| {
        path.extension().and_then(|e| e.to_str()).is_some_and(|e| ["cu", "cuh", "hip", "h"].contains(&e))
    };
    paths.retain(|path| is_code(path) && !path.ends_with("kernels-hip/prelude.h"));
    sources(root, paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_passes() {
        assert_eq!(check(&crate::tree::root()).unwrap().1, Vec::<String>::new());
    }

    /// The tree with a text of one file replaced leads to one finding.
    #[track_caller]
    fn broken(path: &str, good: &str, bad: &str, says: &str) {
        let root = crate::tree::root();
        let mut sources = [rust_sources(&root).unwrap(), device_sources(&root).unwrap()];
        let text =
            sources.iter_mut().flatten().find(|source| source.0 == path).map(|source| &mut source.1).unwrap();
        assert!(text.contains(good), "{path} has no '{good}'");
        *text = text.replacen(good, bad, 1);
        let found = findings(&sources[0], &sources[1]);
        assert!(found.len() == 1 && found[0].starts_with(path) && found[0].contains(says), "{found:?}");
    }

    #[test]
    fn a_broken_tree_fails() {
        let loader = "crates/portolan/src/loader.rs";
        broken(loader, "\nfn ", "\nfn sneak() { stream.launch_kernel(k, c, a) }\nfn ", "outside the chart");
        broken("crates/portolan/src/core.rs", "\nimpl ", "\nfn hip_only() {}\nimpl ", "names a backend: hip");
        broken("kernels-cuda/common.cuh", "mask = LANES / 2", "mask = 8", "begins at 8");
        broken("kernels-cuda/common.cuh", "threadIdx.x % LANES", "threadIdx.x % 32", "`% 32` counts lanes");
        broken("kernels-hip/dialect.h", "mask, LANES)", "mask, 32)", "its last argument is not");
        broken(
            "kernels-hip/dialect.h",
            "#ifndef LANES",
            "#define LANES __AMDGCN_WAVEFRONT_SIZE\n#ifndef LANES",
            "the define LANES",
        );
        broken("kernels-cuda/norm.cu", "begin();", "begin(); __shfl_down(x, 1);", "stands in a dialect");
        broken(
            "crates/device/src/kernel_cache.rs",
            "in source.defines",
            "in none",
            "leaves out source.defines",
        );
    }
}
