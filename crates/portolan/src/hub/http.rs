//! Requests to a hub: one attempt, and insisting.

use std::error::Error;
use std::thread;
use std::time::Duration;

use ureq::config::RedirectAuthHeaders;
use ureq::http::{Response, header};
use ureq::{Agent, Body, Proxy};

use super::{HubError, HubOptions, Progress, Retry};

/// The longest pause between two attempts, whatever the server or the doubling asks for.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Why one attempt brought nothing.
#[derive(Debug)]
pub(super) enum Failure {
    /// Another attempt cannot do better.
    Final(HubError),
    /// Another attempt may do better.
    Again {
        /// What went wrong.
        cause: Box<dyn Error + Send + Sync>,
        /// The pause that the server asks for.
        pause: Option<Duration>,
    },
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        Self::Final(error)
    }
}

impl Failure {
    pub(super) fn again(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Again { cause: cause.into(), pause: None }
    }
}

/// How far a transfer has come, by which [`Client::insist`] sees whether an attempt got anywhere.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reached {
    /// Bytes that are here.
    pub(super) have: u64,
    /// Bytes of the whole, where known.
    pub(super) want: Option<u64>,
}

/// An HTTP client for one hub.
#[derive(Debug)]
pub(super) struct Client {
    agent: Agent,
    authorization: Option<String>,
    retry: Retry,
}

impl Client {
    pub(super) fn new(opts: &HubOptions) -> Self {
        let stall = Some(opts.retry.stall);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .user_agent(concat!("portolan/", env!("CARGO_PKG_VERSION")))
            // A redirect to a content network must not carry the token along.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .proxy(if opts.env_proxy { Proxy::try_from_env() } else { None })
            .timeout_resolve(stall)
            .timeout_connect(stall)
            .timeout_recv_response(stall)
            // No limit on the whole body, which may take hours; a limit on each read sees a dead connection.
            .timeout_per_read(stall)
            .timeout_per_write(stall)
            .build();
        Self {
            agent: config.new_agent(),
            authorization: opts.token.as_ref().map(|token| format!("Bearer {token}")),
            retry: opts.retry,
        }
    }

    /// Whether requests carry a token.
    pub(super) fn has_token(&self) -> bool {
        self.authorization.is_some()
    }

    /// One GET, from byte `offset` on. Answers 200, 206 and 416 are handed back.
    pub(super) fn get(&self, url: &str, offset: u64) -> Result<Response<Body>, Failure> {
        let mut request = self.agent.get(url).header(header::ACCEPT_ENCODING, "identity");
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        if offset > 0 {
            request = request.header(header::RANGE, format!("bytes={offset}-"));
        }
        let response = request.call().map_err(|error| transport(url, error))?;
        match response.status().as_u16() {
            200 | 206 => Ok(response),
            416 if offset > 0 => Ok(response),
            status @ (408 | 429 | 500..=599) => {
                let pause = response.headers().get(header::RETRY_AFTER);
                let pause = pause.and_then(|value| value.to_str().ok()?.trim().parse().ok());
                Err(Failure::Again {
                    cause: format!("the server answered {status}").into(),
                    pause: pause.map(Duration::from_secs),
                })
            }
            status => Err(HubError::Status { url: url.to_owned(), status }.into()),
        }
    }

    /// Repeats `attempt` until it succeeds, fails for good, or fails [`Retry::attempts`] times in a row without
    /// a byte more than ever before.
    pub(super) fn insist<T>(
        &self,
        url: &str,
        progress: &mut dyn FnMut(Progress<'_>),
        mut attempt: impl FnMut(&mut dyn FnMut(Progress<'_>), &mut Reached) -> Result<T, Failure>,
    ) -> Result<T, HubError> {
        let mut reached = Reached::default();
        let mut best = None;
        let mut failures = 0;
        loop {
            let (cause, asked) = match attempt(progress, &mut reached) {
                Ok(done) => return Ok(done),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Again { cause, pause }) => (cause, pause),
            };
            // The first attempt sets the mark. Later only what goes beyond it counts, so that a server which
            // starts over each time and breaks off at the same place does not keep us here for ever.
            if best.is_some_and(|best| reached.have > best) {
                failures = 0;
            }
            best = best.max(Some(reached.have));
            failures += 1;
            if failures >= self.retry.attempts.max(1) {
                let Reached { have, want } = reached;
                return Err(HubError::Interrupted {
                    url: url.to_owned(),
                    failures,
                    have,
                    want,
                    source: cause,
                });
            }
            let text = cause.to_string();
            tracing::debug!(url, failures, cause = text, "attempt failed");
            progress(Progress::Retrying { what: url, failures, attempts: self.retry.attempts, cause: &text });
            let doubled = self.retry.first_pause.saturating_mul(1 << (failures - 1).min(10));
            thread::sleep(asked.unwrap_or(doubled).min(LONGEST_PAUSE));
        }
    }
}

/// Which failures of the transport may pass.
fn transport(url: &str, error: ureq::Error) -> Failure {
    use ureq::Error as E;
    match error {
        E::Io(_) | E::Timeout(_) | E::HostNotFound | E::ConnectionFailed | E::Protocol(_) => {
            Failure::again(error)
        }
        error => Failure::Final(HubError::Unreachable { url: url.to_owned(), source: error.into() }),
    }
}

/// Percent-encodes what may stand in a path of a URL; `/` is kept if asked.
pub(super) fn encode(text: &str, keep_slash: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
        if plain || (keep_slash && byte == b'/') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
