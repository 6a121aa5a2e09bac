//! Fetching from a hub: all files of a checkpoint, or one GGUF.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use ureq::http::header;

use super::http::{Client, Failure, Reached, encode};
use super::listing::{Listing, Remote, explain};
use super::partial::{BUFFER, Partial};
use super::spec::HubName;
use super::store::{Lock, check_room, io_error, make_folder, publish};
use super::{HubError, HubOptions, Progress};

/// Says in a folder which model at which commit it holds.
const RECORD: &str = ".portolan.json";

/// Where one hub model stands in the cache.
#[derive(Debug)]
pub(super) struct Place {
    /// The folder of the repository.
    repo: PathBuf,
    /// The final folder or file.
    path: PathBuf,
    /// Where files arrive. Kept when a fetch is interrupted.
    staging: PathBuf,
    lock: PathBuf,
    single: bool,
}

impl Place {
    pub(super) fn new(name: &HubName, models_dir: &Path) -> Self {
        let repo = models_dir.join("hub").join(&name.owner).join(&name.name);
        let revision = name.revision.replace('/', "%2F");
        // '@' and a leading dot never stand in a revision, so these cannot clash with one.
        let key = if name.file.is_some() { format!("gguf@{revision}") } else { revision };
        let folder = repo.join(&key);
        Self {
            path: name.file.as_ref().map_or_else(|| folder.clone(), |file| folder.join(file)),
            staging: repo.join(format!(".{key}.partial")),
            lock: repo.join(format!(".{key}.lock")),
            single: name.file.is_some(),
            repo,
        }
    }

    /// The final path, if it is there. Nothing incomplete ever stands there.
    pub(super) fn cached(&self) -> Option<PathBuf> {
        let there = if self.single { self.path.is_file() } else { self.path.is_dir() };
        there.then(|| self.path.clone())
    }
}

/// The path of the model in the cache, fetched if it is not there.
pub(super) fn fetch(
    name: &HubName,
    opts: &HubOptions,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, HubError> {
    let place = Place::new(name, &opts.models_dir);
    if let Some(path) = place.cached() {
        return Ok(path);
    }
    make_folder(&place.repo)?;
    let _lock = Lock::acquire(place.lock.clone(), progress)?;
    // It may have arrived while this call waited.
    if let Some(path) = place.cached() {
        return Ok(path);
    }
    let client = Client::new(opts);
    let listing = Listing::fetch(&client, &opts.endpoint, name, progress)?;
    let files = listing.choose(name)?;
    prepare(&place, name, listing.commit.as_deref())?;
    let download = Download { client, name, place: &place, endpoint: &opts.endpoint, commit: listing.commit };
    download.all(&files, progress)?;
    if place.single {
        if let Some(folder) = place.path.parent() {
            make_folder(folder)?;
        }
        publish(&place.staging.join(name.file.as_deref().unwrap_or_default()), &place.path)?;
        // What is left there is the record alone.
        let _ = fs::remove_dir_all(&place.staging);
    } else {
        publish(&place.staging, &place.path)?;
    }
    Ok(place.path)
}

/// Makes the staging folder, or empties it if it holds files of another commit.
fn prepare(place: &Place, name: &HubName, commit: Option<&str>) -> Result<(), HubError> {
    let record = serde_json::json!({ "model": name.repo(), "revision": name.revision, "commit": commit });
    let record = format!("{record:#}\n");
    let path = place.staging.join(RECORD);
    if fs::read_to_string(&path).is_ok_and(|old| old == record) {
        return Ok(());
    }
    if place.staging.exists() {
        let gone = fs::remove_dir_all(&place.staging);
        gone.map_err(|source| io_error("empty the folder", &place.staging, None, source))?;
    }
    make_folder(&place.staging)?;
    fs::write(&path, record).map_err(|source| io_error("write", &path, None, source))
}

struct Download<'a> {
    client: Client,
    name: &'a HubName,
    place: &'a Place,
    endpoint: &'a str,
    commit: Option<String>,
}

impl Download<'_> {
    fn all(&self, files: &[Remote], progress: &mut dyn FnMut(Progress<'_>)) -> Result<(), HubError> {
        let total: Option<u64> = files.iter().map(|file| file.expected.size).sum();
        let here: u64 = files.iter().map(|file| self.here(file)).sum();
        check_room(&self.place.staging, total.unwrap_or(0).saturating_sub(here))?;
        progress(Progress::Started { what: &self.name.repo(), total });
        let mut done = 0;
        for file in files {
            done += self.one(file, done, progress)?;
            progress(Progress::Bytes { done });
        }
        progress(Progress::Finished);
        Ok(())
    }

    fn part(&self, file: &Remote) -> PathBuf {
        self.place.staging.join(format!("{}.part", file.name))
    }

    /// Bytes of the file that an earlier call left here.
    fn here(&self, file: &Remote) -> u64 {
        let size = |path: &Path| fs::metadata(path).map(|meta| meta.len()).ok();
        size(&self.place.staging.join(&file.name)).or_else(|| size(&self.part(file))).unwrap_or(0)
    }

    /// Brings one file under its name in the staging folder; gives its size. `done` bytes came before it.
    fn one(&self, file: &Remote, done: u64, progress: &mut dyn FnMut(Progress<'_>)) -> Result<u64, HubError> {
        let path = self.place.staging.join(&file.name);
        // It was verified before it got this name.
        if let Ok(meta) = fs::metadata(&path) {
            return Ok(meta.len());
        }
        let revision = self.commit.as_deref().unwrap_or(&self.name.revision);
        let (repo, revision) = (self.name.repo(), encode(revision, false));
        let url = format!("{}/{repo}/resolve/{revision}/{}", self.endpoint, encode(&file.name, true));
        let mut second = false;
        loop {
            let mut partial = Partial::open(self.part(file), file.expected.clone())?;
            let resumed = self.fill(&mut partial, &url, done, progress);
            let resumed = resumed.map_err(|error| explain(error, &self.client, self.endpoint, self.name))?;
            match partial.verify(&file.name) {
                // The pieces may not belong together; from the first byte on they must.
                Err(HubError::HashMismatch { .. }) if resumed && !second => second = true,
                Err(error) => return Err(error),
                Ok(()) => {
                    let len = partial.len();
                    return partial.publish(&path).map(|()| len);
                }
            }
            tracing::warn!(url, "what was resumed has a wrong hash: it is fetched again from the start");
        }
    }

    /// Fills the file; says whether it is made of pieces.
    fn fill(
        &self,
        partial: &mut Partial,
        url: &str,
        done: u64,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<bool, HubError> {
        let mut resumed = partial.len() > 0;
        if partial.is_full() {
            return Ok(resumed);
        }
        self.client.insist(url, progress, |progress, reached| {
            let offset = partial.len();
            let outcome =
                self.attempt(partial, url, &mut |len| progress(Progress::Bytes { done: done + len }));
            *reached = Reached { have: partial.len(), want: partial.expected_size() };
            resumed = (resumed || offset > 0) && !matches!(outcome, Ok(Range::Whole));
            outcome.map(drop)
        })?;
        Ok(resumed)
    }

    fn attempt(&self, partial: &mut Partial, url: &str, told: &mut dyn FnMut(u64)) -> Result<Range, Failure> {
        let offset = partial.len();
        let mut response = self.client.get(url, offset)?;
        let status = response.status().as_u16();
        let start = response.headers().get(header::CONTENT_RANGE).and_then(|v| range_start(v.to_str().ok()?));
        let range = match status {
            206 if start == Some(offset) => Range::Rest,
            200 => {
                // The server ignores Range: it sends the whole again.
                partial.restart()?;
                Range::Whole
            }
            _ => {
                partial.restart()?;
                let cause =
                    format!("the server answered {status} with the wrong range, so the file starts again");
                return Err(Failure::again(cause));
            }
        };
        let mut body = response.body_mut().as_reader();
        let mut buffer = vec![0; BUFFER];
        loop {
            let n = body.read(&mut buffer).map_err(Failure::again)?;
            if n == 0 {
                break;
            }
            if partial.expected_size().is_some_and(|size| partial.len() + n as u64 > size) {
                // Too long: `verify` says so and removes it.
                partial.write(&buffer[..n])?;
                return Ok(range);
            }
            partial.write(&buffer[..n])?;
            told(partial.len());
        }
        match partial.expected_size() {
            Some(size) if partial.len() < size => Err(Failure::again("the connection ended early")),
            _ => Ok(range),
        }
    }
}

/// What a server sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Range {
    Whole,
    Rest,
}

/// The first byte's place, of `bytes FIRST-LAST/TOTAL`.
fn range_start(content_range: &str) -> Option<u64> {
    content_range.trim().strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}
