//! hip-emu for the gates that run kernels: built once, and given to programs by their environment.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context, Result, ensure};

use crate::{
    outcome::Outcome,
    test_run::{Ran, watch},
};

/// A device that hip-emu can be, with one of 32 lanes and one of 64: an APU and a discrete one.
pub(super) const PROFILES: [&str; 2] = ["gfx1151", "gfx942"];

/// C++ compilers that hip-emu looks for, the shortest of its list.
const COMPILERS: [&str; 5] = ["clang++-22", "clang++-19", "clang++", "g++", "c++"];

/// The emulator, the program and the tests, built.
pub(super) struct Emu {
    root: PathBuf,
    library: PathBuf,
    portolan: PathBuf,
    /// Programs of tests, by the name of the test, with the folder that they are to run in.
    tests: BTreeMap<(String, String), (PathBuf, PathBuf)>,
    kernels: PathBuf,
    /// For reports and results.
    folder: tempfile::TempDir,
    profiles: AtomicUsize,
}

/// A device of the emulator, with settings.
pub(super) struct Profile<'a> {
    emu: &'a Emu,
    report: PathBuf,
    settings: Vec<(String, String)>,
}

impl Emu {
    /// Builds them; or says why they cannot be used here.
    pub(super) fn build(root: &Path) -> Result<Result<Self, String>> {
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            return Ok(Err("hip-emu runs on x86-64 Linux alone".to_owned()));
        }
        if !COMPILERS.iter().any(|name| on_path(name)) {
            return Ok(Err("hip-emu needs a C++ compiler: apt-get install g++".to_owned()));
        }
        // The whole workspace, so that nothing is built a second time with other features.
        println!("$ cargo test --workspace --no-run");
        let output = Command::new("cargo")
            .current_dir(root)
            .args(["test", "--quiet", "--workspace", "--no-run", "--message-format=json"])
            .stderr(Stdio::inherit())
            .output()
            .context("cannot run cargo")?;
        ensure!(output.status.success(), "the tree does not build");
        let folder = tempfile::tempdir().context("cannot make a folder for reports")?;
        let mut emu = Emu {
            root: root.to_owned(),
            library: PathBuf::new(),
            portolan: PathBuf::new(),
            tests: BTreeMap::new(),
            kernels: PathBuf::new(),
            folder,
            profiles: AtomicUsize::new(0),
        };
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            if let Ok(message) = serde_json::from_str(line) {
                emu.add(&message);
            }
        }
        let target = emu.portolan.parent().and_then(Path::parent).map(Path::to_owned);
        ensure!(emu.library.is_file() && target.is_some(), "cargo built no hip-emu or no portolan");
        // Compiled kernels outlive a run of the gates, and are found again by their whole text.
        emu.kernels = target.unwrap_or_default().join("hip-emu-kernels");
        Ok(Ok(emu))
    }

    /// Notes what cargo says that it built.
    fn add(&mut self, message: &serde_json::Value) {
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let target = &message["target"];
        let (name, kind) = (text(&target["name"]), text(&target["kind"][0]));
        if name == "amdhip64_emu" {
            let files = message["filenames"].as_array().map(Vec::as_slice).unwrap_or_default();
            let library = files.iter().map(text).find(|file| file.ends_with(".so"));
            self.library = library.map_or_else(|| std::mem::take(&mut self.library), PathBuf::from);
        }
        let Some(program) = message["executable"].as_str().map(PathBuf::from) else { return };
        match kind.as_str() {
            "bin" if name == "portolan" && message["profile"]["test"] == false => self.portolan = program,
            "test" => {
                let manifest = PathBuf::from(text(&message["manifest_path"]));
                let folder = manifest.parent().unwrap_or(&self.root).to_owned();
                let package = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
                self.tests.insert((package, name), (program, folder));
            }
            _ => {}
        }
    }

    /// A device, with strict checks, which tells what is left at the end.
    pub(super) fn profile(&self, device: &str) -> Profile<'_> {
        let number = self.profiles.fetch_add(1, Ordering::Relaxed);
        let report = self.path(&format!("report-{number}"));
        let profile = Profile { emu: self, report, settings: Vec::new() };
        profile.with("HIP_EMU_DEVICE", device).with("HIP_EMU_LEAKS", "1")
    }

    /// A file or folder for a result.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `portolan` without the emulator.
    pub(super) fn portolan(&self) -> Command {
        let mut command = Command::new(&self.portolan);
        command.current_dir(&self.root);
        command
    }
}

impl Profile<'_> {
    /// With a variable of the environment.
    pub(super) fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.settings.push((name.to_owned(), value.to_string()));
        self
    }

    /// A program that finds the emulator where it looks for HIP.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(&self.emu.root)
            .env("PORTOLAN_HIP_LIBRARY", &self.emu.library)
            .env("PORTOLAN_HIPRTC_LIBRARY", &self.emu.library)
            .env("PORTOLAN_CACHE_DIR", &self.emu.kernels)
            .env("HIP_EMU_REPORT", &self.report)
            .envs(self.settings.iter().map(|(name, value)| (name, value)));
        command
    }

    /// `portolan`.
    pub(super) fn portolan(&self) -> Command {
        self.command(&self.emu.portolan)
    }

    /// Runs a program of tests: those whose names hold one of `names`, or all.
    pub(super) fn tests(&self, package: &str, test: &str, names: &[&str]) -> Result<Ran> {
        let found = self.emu.tests.get(&(package.to_owned(), test.to_owned()));
        let (program, folder) = found.with_context(|| format!("crates/{package} has no test {test}"))?;
        let settings: Vec<_> = self.settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
        println!("$ {} {package}/tests/{test} {}", settings.join(" "), names.join(" "));
        let mut command = self.command(program);
        command.current_dir(folder).arg("--nocapture").args(names);
        watch(command)
    }

    /// What is wrong with a run of tests that must neither fail nor skip, and what the emulator objects to.
    pub(super) fn faults(&self, package: &str, test: &str, names: &[&str]) -> Result<Vec<String>> {
        let ran = self.tests(package, test, names)?;
        let mut findings = match ran.outcome {
            Outcome::Fail(found) => found,
            _ => Vec::new(),
        };
        // There is no NVIDIA GPU, and that is no matter here.
        findings.extend(ran.skips.into_iter().filter(|skip| !skip.starts_with("SKIPPED(cuda ")));
        findings.extend(self.violations()?);
        Ok(findings)
    }

    /// What the emulator objected to since the last time, a line each.
    pub(super) fn violations(&self) -> Result<Vec<String>> {
        let text = match fs::read_to_string(&self.report) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).context("cannot read the emulator's report"),
        };
        fs::remove_file(&self.report)?;
        // What follows a violation is indented.
        let first = text.lines().filter(|line| !line.starts_with(' ') && !line.is_empty());
        Ok(first.map(str::to_owned).collect())
    }
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
