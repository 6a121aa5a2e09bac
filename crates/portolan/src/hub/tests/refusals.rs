//! What a hub or a disk may refuse, and what is refused before anything is fetched.

use std::fs;

use super::super::{HubError, locate, resolve};
use super::hub::{BIG, check_absent, check_whole, options, part, small_repo};
use super::server::{Reply, Repo, Server};
use super::{names, noise, quiet};

#[track_caller]
fn check_status(status: u16, token: Option<&str>, says: &[&str]) {
    let server = Server::start(move |_| Reply::status(status));
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(&server, dir.path());
    options.token = token.map(str::to_owned);
    let error = resolve("o/n@v2", &options, &mut quiet()).unwrap_err().to_string();
    for word in says {
        assert!(error.contains(word), "{word:?} is missing: {error}");
    }
    assert_eq!(server.requests("").len(), 1, "there is nothing to retry");
    assert_eq!(locate("o/n@v2", &options).unwrap(), None);
}

#[test]
fn refusals_say_what_to_do() {
    check_status(401, None, &["o/n", "401", "set HF_TOKEN"]);
    check_status(403, Some("hf_x"), &["o/n", "403", "token in HF_TOKEN has no access"]);
    check_status(404, None, &["o/n", "no such model", "v2", "http://127.0.0.1"]);
    check_status(418, None, &["/api/models/o/n/revision/v2", "418"]);
}

#[test]
fn the_token_goes_to_the_hub_and_not_to_another_host_it_redirects_to() {
    let repo = small_repo();
    *repo.cuts.lock().unwrap() = vec![300_000];
    let content = repo.serve();
    // Two names of this machine are two hosts.
    let there = content.url().replace("127.0.0.1", "localhost");
    let repo = small_repo();
    let server = Server::start(move |request| {
        let to = |place: String| Reply { headers: vec![format!("Location: {place}")], ..Reply::status(307) };
        match request.path.strip_prefix("/o/n/") {
            Some(file) if file.ends_with("model.safetensors") => to(format!("{there}/o/n/{file}")),
            // A renamed repository.
            Some(file) => to(format!("/new/n/{file}")),
            None => repo.reply(request),
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(&server, dir.path());
    options.token = Some("hf_x".to_owned());
    check_whole(&resolve("o/n", &options, &mut quiet()).unwrap());
    assert!(
        server.requests("").iter().all(|request| request.authorization.as_deref() == Some("Bearer hf_x"))
    );
    assert_eq!(server.requests("/new/n/resolve/c0ffee/config.json").len(), 1);
    let asked = content.requests("");
    assert!(asked.iter().all(|request| request.authorization.is_none()));
    assert_eq!(asked.iter().map(|request| request.range).collect::<Vec<_>>(), [None, Some(300_000)]);
}

#[test]
fn a_name_that_leads_outside_is_refused_before_anything_is_fetched() {
    for name in
        ["../../evil.safetensors", "/etc/evil.safetensors", "a/../../evil.json", "..\\evil.safetensors"]
    {
        let mut repo = small_repo();
        repo.files.push((name.to_owned(), b"x".to_vec(), true));
        let (server, dir) = (repo.serve(), tempfile::tempdir().unwrap());
        let options = options(&server, dir.path());
        let error = resolve("o/n", &options, &mut quiet()).unwrap_err();
        assert!(matches!(&error, HubError::UnsafeName { file, .. } if file == name), "{error}");
        assert_eq!(server.requests("").len(), 1, "only the listing was asked for");
        check_absent(&options);
    }
}

#[track_caller]
fn check_listing(body: &str, says: &str) {
    let body = body.to_owned();
    let server = Server::start(move |_| Reply::ok(body.clone().into_bytes()));
    let dir = tempfile::tempdir().unwrap();
    let error = resolve("o/n", &options(&server, dir.path()), &mut quiet()).unwrap_err();
    assert!(matches!(error, HubError::BadListing { .. }) && error.to_string().contains(says), "{error}");
}

#[test]
fn an_answer_that_is_no_listing_is_named() {
    check_listing("<html>", "expected value");
    check_listing("{}", "siblings");
    check_listing(r#"{"siblings":[{}]}"#, "rfilename");
    check_listing(r#"{"siblings":[{"rfilename":"a.gguf","lfs":{"sha256":"xyz"}}]}"#, "64 hex digits");
}

#[test]
fn one_gguf_is_picked_by_name() {
    let files =
        [("README.md", vec![1]), ("m-Q4_0.gguf", noise(5000, 2)), ("big/m-Q8_0.gguf", noise(9000, 3))];
    let (server, dir) = (Repo::new(&files).serve(), tempfile::tempdir().unwrap());
    let options = options(&server, dir.path());

    let error = resolve("o/n", &options, &mut quiet()).unwrap_err();
    assert!(
        matches!(&error, HubError::PickOne { files, .. } if files == &["big/m-Q8_0.gguf", "m-Q4_0.gguf"])
    );
    assert!(error.to_string().contains("o/n:big/m-Q8_0.gguf"), "{error}");
    let error = resolve("o/n:no.gguf", &options, &mut quiet()).unwrap_err();
    assert!(matches!(&error, HubError::NoSuchFile { available, .. } if available.len() == 2), "{error}");

    for (name, body) in &files[1..] {
        let spec = format!("o/n:{name}");
        assert_eq!(locate(&spec, &options).unwrap(), None);
        let path = resolve(&spec, &options, &mut quiet()).unwrap();
        assert_eq!(path, dir.path().join("hub/o/n/gguf@main").join(name));
        assert!(fs::read(&path).unwrap() == *body);
        assert_eq!(locate(&spec, &options).unwrap(), Some(path));
    }
    assert_eq!(names(&dir.path().join("hub/o/n")), [".gguf@main.lock", ".main.lock", "gguf@main"]);
}

#[test]
fn a_repository_with_nothing_to_load_says_what_it_has() {
    let (server, dir) = (Repo::new(&[("pytorch_model.bin", vec![1])]).serve(), tempfile::tempdir().unwrap());
    let error = resolve("o/n", &options(&server, dir.path()), &mut quiet()).unwrap_err().to_string();
    assert!(
        error.contains("neither .safetensors nor .gguf") && error.contains("pytorch_model.bin"),
        "{error}"
    );
}

/// `/dev/full` is a file on a full disk.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told_with_its_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let mut repo = small_repo();
    repo.always_cut = Some(0);
    let server = repo.serve();
    resolve("o/n", &options(&server, dir.path()), &mut quiet()).unwrap_err();
    fs::remove_file(part(dir.path())).unwrap();
    std::os::unix::fs::symlink("/dev/full", part(dir.path())).unwrap();
    let server = small_repo().serve();
    let options = options(&server, dir.path());
    let error = resolve("o/n", &options, &mut quiet()).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, HubError::NoSpace { needed: Some(needed), .. } if needed == BIG as u64),
        "{text}"
    );
    assert!(text.contains("700000 more bytes") && text.contains("PORTOLAN_MODELS_DIR"), "{text}");
    check_absent(&options);
}

#[test]
fn what_cannot_fit_is_refused_before_a_byte_is_fetched() {
    let mut repo = small_repo();
    repo.lies.push(("model.safetensors".to_owned(), "0".repeat(64), 1 << 60));
    let (server, dir) = (repo.serve(), tempfile::tempdir().unwrap());
    let options = options(&server, dir.path());
    let error = resolve("o/n", &options, &mut quiet()).unwrap_err();
    assert!(matches!(error, HubError::NoSpace { needed: Some(_), free: Some(_), .. }), "{error}");
    assert_eq!(server.requests("").len(), 1);
    check_absent(&options);
}
