//! A clang that makes AMD's code objects with no ROCm: kernels are compiled under a prelude of our own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use portolan::device::KernelSource;

use super::code_object::{self, Taken};

/// Taken in this order.
const NAMES: [&str; 4] = ["clang-22", "clang-21", "clang-20", "clang-19"];

/// What stands in for HIP's headers.
const PRELUDE: &str = include_str!("../../../kernels-hip/prelude.h");

/// How to come by one.
const ADVICE: &str = "apt-get install --no-install-recommends clang-22 lld-22";

/// A compiler, with a folder for what it reads and writes.
#[derive(Debug)]
pub(super) struct Clang {
    program: String,
    /// As it says itself.
    pub(super) version: String,
    folder: tempfile::TempDir,
}

impl Clang {
    /// The first that makes code for RDNA 3.5; else why none does, and what to install.
    ///
    /// # Errors
    /// If there is no folder for temporary files.
    pub(super) fn find() -> Result<Result<Self, String>> {
        Self::among(&NAMES)
    }

    fn among(names: &[&str]) -> Result<Result<Self, String>> {
        let empty = KernelSource {
            file: "empty.hip",
            text: "extern \"C\" __global__ void empty() {}\n",
            headers: &[],
            entry: "empty",
            defines: &[],
        };
        let mut why = "no clang of version 19 or later".to_owned();
        for name in names {
            let Some(version) = version(name) else { continue };
            let folder = tempfile::tempdir().context("cannot make a folder for the compiler")?;
            let clang = Clang { program: (*name).to_owned(), version, folder };
            match clang.compile(&empty, "gfx1151") {
                Ok(_) => return Ok(Ok(clang)),
                Err(log) => why = format!("{name}: {}", log.lines().next().unwrap_or_default()),
            }
        }
        Ok(Err(format!("{why}; {ADVICE}")))
    }

    /// Compiles a kernel; what it takes, or the compiler's log.
    pub(super) fn compile(&self, source: &KernelSource<'_>, arch: &str) -> Result<Taken, String> {
        let object = self.object(source, arch)?;
        code_object::taken(&object, source.entry).map_err(|error| format!("{error:#}"))
    }

    /// The code object of a kernel, or the compiler's log.
    fn object(&self, source: &KernelSource<'_>, arch: &str) -> Result<Vec<u8>, String> {
        let broken = |what: &Path, error: std::io::Error| format!("cannot use {}: {error}", what.display());
        // Each in a folder of its own, for many are compiled at once.
        let folder = tempfile::tempdir_in(self.folder.path()).map_err(|e| broken(self.folder.path(), e))?;
        let path = |name: &str| folder.path().join(name);
        let own = [("prelude.h", PRELUDE), (source.file, source.text)];
        for (name, text) in source.headers.iter().chain(&own) {
            fs::write(path(name), text).map_err(|e| broken(&path(name), e))?;
        }
        let object = path("kernel.co");
        let mut command = self.command(&path(source.file), arch);
        command.arg("-include").arg(path("prelude.h")).arg("-o").arg(&object);
        command.args(source.defines.iter().map(|(name, value)| format!("-D{name}={value}")));
        let output = command.output().map_err(|e| broken(Path::new(&self.program), e))?;
        if !output.status.success() {
            return Err(errors(&String::from_utf8_lossy(&output.stderr)));
        }
        fs::read(&object).map_err(|e| broken(&object, e))
    }

    /// What hipRTC is given, and what makes do without ROCm.
    fn command(&self, file: &PathBuf, arch: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args([
            "-x",
            "hip",
            "--offload-device-only",
            "--no-gpu-bundle-output",
            "-nogpulib",
            "-nogpuinc",
        ]);
        command.arg(format!("--offload-arch={arch}")).args([
            "-O3",
            "-std=c++17",
            "-Wno-unused-command-line-argument",
        ]);
        command.arg("-c").arg(file);
        command
    }
}

/// The first errors of a compiler's log, without the folder they are in; the whole log if it names none.
pub(super) fn errors(log: &str) -> String {
    let bare = |line: &str| line.rsplit_once('/').map_or(line, |(_, rest)| rest).to_owned();
    let errors: Vec<_> = log.lines().filter(|line| line.contains("error: ")).take(3).map(bare).collect();
    if errors.is_empty() { log.trim().to_owned() } else { errors.join("; ") }
}

/// The first line of `--version`; none if there is no such program.
pub(super) fn version(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok().filter(|o| o.status.success())?;
    String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_errors_of_a_log_are_kept() {
        let log = "/t/a/k.hip:1:2: error: no x\n  x;\n  ^\nk.h:3:4: error: no y\n2 errors generated\n";
        assert_eq!(errors(log), "k.hip:1:2: error: no x; k.h:3:4: error: no y");
        assert_eq!(errors("killed\n"), "killed");
    }

    #[test]
    fn what_is_missing_is_said_with_what_to_install() {
        let why = Clang::among(&["no-such-clang"]).unwrap().unwrap_err();
        assert!(why.contains("no clang") && why.contains("apt-get install"), "{why}");
        // A program that is there and makes no code.
        let why = Clang::among(&["true"]).unwrap().unwrap_err();
        assert!(why.contains("apt-get install"), "{why}");
    }
}
