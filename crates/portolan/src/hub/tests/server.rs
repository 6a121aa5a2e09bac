//! A small HTTP server that plays a hub, well or badly.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sha2::{Digest, Sha256};

/// A request as it came.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) path: String,
    pub(super) range: Option<usize>,
    pub(super) authorization: Option<String>,
}

/// An answer, and how the server fails on the way.
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<String>,
    pub(super) body: Vec<u8>,
    /// Send so many bytes of the body, then break the connection.
    pub(super) cut: Option<usize>,
    /// Instead of breaking it, send nothing more for so long.
    pub(super) stall: Option<Duration>,
}

impl Reply {
    pub(super) fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), cut: None, stall: None }
    }

    pub(super) fn ok(body: Vec<u8>) -> Self {
        Self { body, ..Self::status(200) }
    }
}

type Handler = dyn Fn(&Request) -> Reply + Send + Sync;

/// The running server. It ends when dropped.
pub(super) struct Server {
    address: SocketAddr,
    log: Arc<Mutex<Vec<Request>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(super) fn start(handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let handler: Arc<Handler> = Arc::new(handler);
        let thread = thread::spawn({
            let (log, stop) = (log.clone(), stop.clone());
            move || {
                for stream in listener.incoming().flatten() {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let (log, handler) = (log.clone(), handler.clone());
                    // A client that goes away early is no failure of the server.
                    thread::spawn(move || answer(stream, &log, &*handler).unwrap_or(()));
                }
            }
        });
        Self { address, log, stop, thread: Some(thread) }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The requests so far for paths that end so.
    pub(super) fn requests(&self, suffix: &str) -> Vec<Request> {
        let log = self.log.lock().unwrap();
        log.iter().filter(|request| request.path.ends_with(suffix)).cloned().collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(mut stream: TcpStream, log: &Mutex<Vec<Request>>, handler: &Handler) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().unwrap_or(Ok(String::new()))?;
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut request = Request { path, range: None, authorization: None };
    for line in lines {
        let line = line?;
        let Some((key, value)) = line.split_once(':') else {
            break;
        };
        match key.to_ascii_lowercase().as_str() {
            "range" => {
                request.range = value.trim().trim_start_matches("bytes=").trim_end_matches('-').parse().ok()
            }
            "authorization" => request.authorization = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    log.lock().unwrap().push(request.clone());
    let reply = handler(&request);
    let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", reply.status);
    head += &format!("Content-Length: {}\r\n", reply.body.len());
    for header in &reply.headers {
        head += &format!("{header}\r\n");
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    let end = reply.cut.unwrap_or(usize::MAX).min(reply.body.len());
    stream.write_all(&reply.body[..end])?;
    stream.flush()?;
    if let Some(stall) = reply.stall {
        thread::sleep(stall);
    }
    stream.shutdown(Shutdown::Both)
}

/// One repository, and the ways in which its server may fail.
pub(super) struct Repo {
    /// Name, contents, whether it is an LFS file.
    pub(super) files: Vec<(String, Vec<u8>, bool)>,
    pub(super) commit: Option<String>,
    /// Whether Range is understood.
    pub(super) ranges: bool,
    /// Each download of `model.safetensors` takes one of these off the front and breaks at that byte of the file.
    pub(super) cuts: Mutex<Vec<usize>>,
    /// Break there every time.
    pub(super) always_cut: Option<usize>,
    /// Do not break, but stall.
    pub(super) stall: Option<Duration>,
    /// Each request takes one of these off the front and answers with it.
    pub(super) statuses: Mutex<Vec<u16>>,
    /// Announce these sha256 and sizes instead of the true ones.
    pub(super) lies: Vec<(String, String, usize)>,
}

impl Repo {
    pub(super) fn new(files: &[(&str, Vec<u8>)]) -> Self {
        let lfs = |name: &str| name.ends_with(".safetensors") || name.ends_with(".gguf");
        Self {
            files: files.iter().map(|(name, body)| ((*name).to_owned(), body.clone(), lfs(name))).collect(),
            commit: Some("c0ffee".to_owned()),
            ranges: true,
            cuts: Mutex::default(),
            always_cut: None,
            stall: None,
            statuses: Mutex::default(),
            lies: Vec::new(),
        }
    }

    pub(super) fn serve(self) -> Server {
        Server::start(move |request| self.reply(request))
    }

    pub(super) fn reply(&self, request: &Request) -> Reply {
        let take = |list: &Mutex<Vec<usize>>| {
            let mut list = list.lock().unwrap();
            if list.is_empty() { None } else { Some(list.remove(0)) }
        };
        let mut statuses = self.statuses.lock().unwrap();
        if !statuses.is_empty() {
            return Reply::status(statuses.remove(0));
        }
        drop(statuses);
        if request.path.starts_with("/api/models/") {
            return Reply::ok(self.listing().into_bytes());
        }
        let name = request.path.splitn(6, '/').nth(5).unwrap_or_default();
        let Some((_, body, _)) = self.files.iter().find(|(file, _, _)| file == name) else {
            return Reply::status(404);
        };
        let start = request.range.filter(|_| self.ranges);
        let mut reply = Reply::ok(body[start.unwrap_or(0).min(body.len())..].to_vec());
        if let Some(start) = start {
            reply.status = 206;
            reply.headers.push(format!("Content-Range: bytes {start}-{}/{}", body.len() - 1, body.len()));
        }
        if name == "model.safetensors" {
            let cut = self.always_cut.or_else(|| take(&self.cuts));
            reply.cut = cut.map(|cut| cut.saturating_sub(start.unwrap_or(0)));
            reply.stall = self.stall.filter(|_| cut.is_some());
        }
        reply
    }

    fn listing(&self) -> String {
        let sibling = |(name, body, lfs): &(String, Vec<u8>, bool)| {
            let lie = self.lies.iter().find(|(file, _, _)| file == name);
            let (sha256, size) = lie.map_or_else(|| (sha256(body), body.len()), |(_, h, s)| (h.clone(), *s));
            let lfs = lfs.then(|| serde_json::json!({ "sha256": sha256, "size": size, "pointerSize": 134 }));
            serde_json::json!({ "rfilename": name, "size": size, "blobId": "b", "lfs": lfs })
        };
        let siblings: Vec<_> = self.files.iter().map(sibling).collect();
        serde_json::json!({ "id": "o/n", "sha": self.commit, "siblings": siblings }).to_string()
    }
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
