//! Downloads from a hub.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::super::{HubError, HubOptions, Progress, locate, resolve};
use super::server::{Reply, Repo, Server, sha256};
use super::{names, noise, quiet};

/// Bytes of the weights in these tests: a few reads long, so that cuts fall between and within them.
pub(super) const BIG: usize = 700_000;

fn weights() -> Vec<u8> {
    noise(BIG, 1)
}

pub(super) fn small_repo() -> Repo {
    Repo::new(&[("config.json", b"{}".to_vec()), ("model.safetensors", weights())])
}

pub(super) fn options(server: &Server, dir: &Path) -> HubOptions {
    let mut options = HubOptions::new(dir);
    options.endpoint = server.url();
    options.retry.attempts = 3;
    options.retry.first_pause = Duration::from_millis(1);
    options
}

pub(super) fn final_folder(dir: &Path) -> PathBuf {
    dir.join("hub/o/n/main")
}

pub(super) fn part(dir: &Path) -> PathBuf {
    dir.join("hub/o/n/.main.partial/model.safetensors.part")
}

/// Nothing stands under the final name, and `locate` says so.
#[track_caller]
pub(super) fn check_absent(options: &HubOptions) {
    assert!(!final_folder(&options.models_dir).exists());
    assert_eq!(locate("o/n", options).unwrap(), None);
}

#[track_caller]
pub(super) fn check_whole(path: &Path) {
    assert!(fs::read(path.join("model.safetensors")).unwrap() == weights(), "the weights differ");
    assert_eq!(fs::read(path.join("config.json")).unwrap(), b"{}");
}

#[test]
fn a_checkpoint_is_fetched_whole_and_once() {
    let needed = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
        "special_tokens_map.json",
        "chat_template.jinja",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ];
    let others =
        ["README.md", "onnx/model.onnx", "original/x.safetensors", "consolidated.safetensors", "a.gguf"];
    let files: Vec<_> =
        needed.iter().chain(&others).map(|name| (*name, name.as_bytes().repeat(1000))).collect();
    let total: usize = files[..needed.len()].iter().map(|(_, body)| body.len()).sum();
    let (server, dir) = (Repo::new(&files).serve(), tempfile::tempdir().unwrap());
    let options = options(&server, dir.path());
    check_absent(&options);

    let (mut last, mut announced) = (0, None);
    let path = resolve("o/n", &options, &mut |progress| match progress {
        Progress::Started { total, .. } => announced = total,
        Progress::Bytes { done } => last = done,
        _ => {}
    });
    let path = path.unwrap();
    assert_eq!(path, final_folder(dir.path()));
    let mut want: Vec<_> = needed.map(str::to_owned).to_vec();
    want.push(".portolan.json".to_owned());
    want.sort();
    assert_eq!(names(&path), want);
    for (name, body) in &files[..needed.len()] {
        assert!(fs::read(path.join(name)).unwrap() == *body, "{name}");
    }
    assert_eq!((announced, last), (Some(total as u64), total as u64));
    assert_eq!(names(&dir.path().join("hub/o/n")), [".main.lock", "main"]);

    let asked = server.requests("").len();
    assert_eq!(resolve("o/n", &options, &mut quiet()).unwrap(), path);
    assert_eq!(locate("o/n", &options).unwrap(), Some(path));
    assert_eq!(server.requests("").len(), asked, "a cached model asks nothing");
}

#[test]
fn files_are_asked_for_by_the_commit_or_else_by_the_revision() {
    for (commit, want) in [(Some("c0ffee"), "/o/n/resolve/c0ffee/"), (None, "/o/n/resolve/refs%2Fpr%2F1/")] {
        let mut repo = small_repo();
        repo.commit = commit.map(str::to_owned);
        let (server, dir) = (repo.serve(), tempfile::tempdir().unwrap());
        let path = resolve("o/n@refs/pr/1", &options(&server, dir.path()), &mut quiet()).unwrap();
        assert_eq!(path, dir.path().join("hub/o/n/refs%2Fpr%2F1"));
        assert!(server.requests("config.json")[0].path.starts_with(want));
        assert_eq!(server.requests("/api/models/o/n/revision/refs%2Fpr%2F1?blobs=true").len(), 1);
    }
}

#[test]
fn a_cut_download_goes_on_where_it_broke() {
    let repo = small_repo();
    *repo.cuts.lock().unwrap() = vec![300_000, 300_000, 500_000];
    let (server, dir) = (repo.serve(), tempfile::tempdir().unwrap());
    let path = resolve("o/n", &options(&server, dir.path()), &mut quiet()).unwrap();
    check_whole(&path);
    let ranges: Vec<_> = server.requests("model.safetensors").iter().map(|request| request.range).collect();
    assert_eq!(ranges, [None, Some(300_000), Some(300_000), Some(500_000)]);
}

#[test]
fn a_cut_that_never_mends_leaves_no_final_file_and_the_next_call_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut repo = small_repo();
    repo.always_cut = Some(300_000);
    let server = repo.serve();
    let options_a = options(&server, dir.path());
    let error = resolve("o/n", &options_a, &mut quiet()).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, HubError::Interrupted { failures: 3, have: 300_000, want: Some(want), .. } if want == BIG as u64),
        "{text}"
    );
    assert!(text.contains("300000 of 700000 bytes are here"), "{text}");
    check_absent(&options_a);
    assert_eq!(fs::metadata(part(dir.path())).unwrap().len(), 300_000);

    let server = small_repo().serve();
    let path = resolve("o/n", &options(&server, dir.path()), &mut quiet()).unwrap();
    check_whole(&path);
    assert_eq!(server.requests("model.safetensors")[0].range, Some(300_000));
    assert!(server.requests("config.json").is_empty(), "what was whole is not fetched again");
}

#[test]
fn a_server_without_range_starts_again() {
    let mut repo = small_repo();
    repo.ranges = false;
    *repo.cuts.lock().unwrap() = vec![300_000];
    let (server, dir) = (repo.serve(), tempfile::tempdir().unwrap());
    check_whole(&resolve("o/n", &options(&server, dir.path()), &mut quiet()).unwrap());
    assert_eq!(server.requests("model.safetensors").len(), 2);
}

#[test]
fn a_server_without_range_that_always_breaks_off_is_given_up() {
    let mut repo = small_repo();
    repo.ranges = false;
    repo.always_cut = Some(300_000);
    let (server, dir) = (repo.serve(), tempfile::tempdir().unwrap());
    let options = options(&server, dir.path());
    let error = resolve("o/n", &options, &mut quiet()).unwrap_err();
    assert!(matches!(error, HubError::Interrupted { failures: 3, .. }), "{error}");
    check_absent(&options);
}

#[test]
fn a_server_that_falls_silent_is_asked_again() {
    let mut repo = small_repo();
    *repo.cuts.lock().unwrap() = vec![300_000];
    repo.stall = Some(Duration::from_secs(5));
    let (server, dir) = (repo.serve(), tempfile::tempdir().unwrap());
    let mut options = options(&server, dir.path());
    options.retry.stall = Duration::from_millis(300);
    check_whole(&resolve("o/n", &options, &mut quiet()).unwrap());
    assert_eq!(server.requests("model.safetensors").len(), 2);
}

#[test]
fn server_faults_pass() {
    for statuses in [vec![503, 500], vec![429], vec![408, 502]] {
        let repo = small_repo();
        *repo.statuses.lock().unwrap() = statuses;
        let (server, dir) = (repo.serve(), tempfile::tempdir().unwrap());
        let mut retries = 0;
        let path = resolve("o/n", &options(&server, dir.path()), &mut |progress| {
            retries += u32::from(matches!(progress, Progress::Retrying { .. }));
        });
        check_whole(&path.unwrap());
        assert!(retries > 0);
    }
}

#[test]
fn a_wrong_hash_leaves_nothing() {
    let mut repo = small_repo();
    repo.lies.push(("model.safetensors".to_owned(), "0".repeat(64), BIG));
    let (server, dir) = (repo.serve(), tempfile::tempdir().unwrap());
    let options = options(&server, dir.path());
    let error = resolve("o/n", &options, &mut quiet()).unwrap_err();
    let HubError::HashMismatch { file, want, got } = &error else { panic!("{error}") };
    assert_eq!(
        (file.as_str(), want.as_str(), got),
        ("model.safetensors", &*"0".repeat(64), &sha256(&weights()))
    );
    check_absent(&options);
    assert!(!part(dir.path()).exists());
}

#[test]
fn a_size_other_than_announced_leaves_nothing() {
    for (name, size) in [("model.safetensors", BIG - 1), ("config.json", 1)] {
        let mut repo = small_repo();
        let hash = sha256(&weights());
        repo.lies.push((name.to_owned(), hash, size));
        let (server, dir) = (repo.serve(), tempfile::tempdir().unwrap());
        let options = options(&server, dir.path());
        let error = resolve("o/n", &options, &mut quiet()).unwrap_err();
        assert!(
            matches!(&error, HubError::SizeMismatch { file, want, .. } if file == name && *want == size as u64)
        );
        check_absent(&options);
    }
}

#[test]
fn a_part_with_foreign_bytes_is_thrown_away() {
    let dir = tempfile::tempdir().unwrap();
    let mut repo = small_repo();
    repo.always_cut = Some(300_000);
    let server = repo.serve();
    resolve("o/n", &options(&server, dir.path()), &mut quiet()).unwrap_err();
    for len in [300_000, BIG, BIG + 5] {
        fs::write(part(dir.path()), noise(len, 9)).unwrap();
        let server = small_repo().serve();
        let path = resolve("o/n", &options(&server, dir.path()), &mut quiet()).unwrap();
        check_whole(&path);
        fs::rename(path, dir.path().join("hub/o/n/.main.partial")).unwrap();
        fs::remove_file(dir.path().join("hub/o/n/.main.partial/model.safetensors")).unwrap();
    }
}

#[test]
fn a_part_of_another_commit_is_not_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let mut repo = small_repo();
    repo.always_cut = Some(300_000);
    let server = repo.serve();
    resolve("o/n", &options(&server, dir.path()), &mut quiet()).unwrap_err();
    let mut repo = small_repo();
    repo.commit = Some("beef".to_owned());
    let server = repo.serve();
    check_whole(&resolve("o/n", &options(&server, dir.path()), &mut quiet()).unwrap());
    assert_eq!(server.requests("model.safetensors")[0].range, None);
    assert_eq!(server.requests("config.json").len(), 1);
}

#[test]
fn two_at_once_fetch_once() {
    let (server, dir) = (small_repo().serve(), tempfile::tempdir().unwrap());
    let options = options(&server, dir.path());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| check_whole(&resolve("o/n", &options, &mut quiet()).unwrap()));
        }
    });
    assert_eq!(server.requests("model.safetensors").len(), 1);
}

/// The first answer breaks off; the second, to the request for the rest, is `odd`.
#[track_caller]
fn check_odd_rest(odd: impl Fn(Reply) -> Reply + Send + Sync + 'static) {
    let repo = small_repo();
    *repo.cuts.lock().unwrap() = vec![300_000];
    let server = Server::start(move |request| match request.range {
        Some(_) => odd(repo.reply(request)),
        None => repo.reply(request),
    });
    let dir = tempfile::tempdir().unwrap();
    check_whole(&resolve("o/n", &options(&server, dir.path()), &mut quiet()).unwrap());
    let ranges: Vec<_> = server.requests("model.safetensors").iter().map(|request| request.range).collect();
    assert_eq!(ranges, [None, Some(300_000), None]);
}

#[test]
fn a_rest_that_does_not_fit_starts_the_file_again() {
    let range = |text: &str| vec![format!("Content-Range: {text}")];
    check_odd_rest(move |reply| Reply { headers: range("bytes 299999-699999/700000"), ..reply });
    check_odd_rest(move |reply| Reply { headers: range("lines 1-2"), ..reply });
    check_odd_rest(|reply| Reply { headers: Vec::new(), ..reply });
    check_odd_rest(|_| Reply::status(416));
}
