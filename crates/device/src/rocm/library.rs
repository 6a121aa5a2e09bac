//! Where ROCm's libraries lie.

use std::{
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use crate::rtc::python_folders;

/// Major versions of HIP that are looked for, best first.
const MAJORS: [u32; 3] = [7, 6, 5];

/// Files that may be the runtime: by name, as the system finds them, then in ROCm's own folders, then in those of
/// Python packages (AMD's wheels, and PyTorch's, whose libraries have no version in their names).
pub(super) fn runtimes() -> Vec<PathBuf> {
    let names = MAJORS.map(|major| format!("libamdhip64.so.{major}"));
    let mut found: Vec<PathBuf> = names.iter().map(PathBuf::from).collect();
    let plain = "libamdhip64.so".to_owned();
    let in_folder =
        |folder: PathBuf| names.iter().chain([&plain]).map(move |n| folder.join(n)).collect::<Vec<_>>();
    found.extend(folders().into_iter().flat_map(in_folder).filter(|path| path.exists()));
    found
}

fn folders() -> Vec<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let mut roots: Vec<PathBuf> = ["ROCM_PATH", "HIP_PATH"].into_iter().filter_map(set).collect();
    roots.push(PathBuf::from("/opt/rocm"));
    let mut folders: Vec<PathBuf> =
        roots.iter().flat_map(|root| ["lib", "lib64"].map(|lib| root.join(lib))).collect();
    folders.extend(python_folders(&["_rocm_sdk_core/lib", "torch/lib"]));
    folders
}

/// Files that may be the compiler that belongs to a runtime. HIP 5's runtime holds it; later ones have it beside them,
/// under the same major version. A compiler of another version is not looked for: its code objects may be too new.
pub(super) fn compilers(runtime: &Path, major: u32) -> Vec<PathBuf> {
    let names = [format!("libhiprtc.so.{major}"), "libhiprtc.so".to_owned()];
    let mut found = vec![runtime.to_owned()];
    let beside = runtime.parent().filter(|folder| !folder.as_os_str().is_empty());
    found.extend(
        beside
            .into_iter()
            .flat_map(|folder| names.iter().map(|name| folder.join(name)))
            .filter(|p| p.exists()),
    );
    found.push(PathBuf::from(&names[0]));
    found.extend(folders().into_iter().map(|folder| folder.join(&names[0])).filter(|path| path.exists()));
    found
}

/// What tells two builds of a library of one version apart: its path, and size and time where the path is whole.
pub(super) fn identity(path: &Path) -> String {
    let Ok(data) = std::fs::metadata(path) else { return path.display().to_string() };
    let time = data.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    format!("{} {} {}", path.display(), data.len(), time.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_itself_is_the_first_compiler_tried_then_the_one_of_its_version() {
        let by_name = compilers(Path::new("libamdhip64.so.7"), 7);
        assert_eq!(by_name[..2], ["libamdhip64.so.7", "libhiprtc.so.7"].map(PathBuf::from));
        assert!(by_name.iter().all(|p| !p.to_string_lossy().contains("so.6")), "{by_name:?}");
        let whole = Path::new("/nowhere/libamdhip64.so.6.2.41134");
        assert_eq!(compilers(whole, 6)[..2], [whole, Path::new("libhiprtc.so.6")]);
    }

    #[test]
    fn newer_runtimes_are_tried_first() {
        assert_eq!(runtimes()[..3], ["7", "6", "5"].map(|n| PathBuf::from(format!("libamdhip64.so.{n}"))));
    }
}
