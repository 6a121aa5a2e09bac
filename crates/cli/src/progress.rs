//! Progress bars on stderr, and only on a terminal.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use portolan::{hub, loader::Progress};

/// A bar for the leg that runs: a download, a load, a conversion.
pub(crate) struct Bars {
    bar: Option<ProgressBar>,
    leg: String,
}

impl Bars {
    pub(crate) fn new() -> Self {
        Bars { bar: None, leg: String::new() }
    }

    fn update(&mut self, leg: String, done: u64, total: Option<u64>) {
        if !io::stderr().is_terminal() {
            return;
        }
        if self.leg != leg {
            self.finish();
            let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
            let template = "{msg} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_message(leg.clone());
            bar.enable_steady_tick(Duration::from_millis(200));
            (self.bar, self.leg) = (Some(bar), leg);
        }
        if let Some(bar) = &self.bar {
            if let Some(total) = total {
                bar.set_length(total);
            }
            bar.set_position(done);
        }
    }

    /// So many of so many bytes of a leg that is neither.
    pub(crate) fn leg(&mut self, leg: &str, done: u64, total: u64) {
        self.update(leg.to_owned(), done, Some(total));
    }

    fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        self.leg.clear();
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Progress for Bars {
    fn fetch(&mut self, progress: &hub::Progress<'_>) {
        match *progress {
            hub::Progress::Started { what, total } => self.update(format!("fetching {what}"), 0, total),
            hub::Progress::Bytes { done } => {
                let leg = self.leg.clone();
                if !leg.is_empty() {
                    self.update(leg, done, None);
                }
            }
            hub::Progress::Retrying { what, failures, attempts, cause } => {
                eprintln!("{what}: {cause}; trying again ({failures} of {attempts})");
            }
            hub::Progress::Waiting { lock } => {
                eprintln!("another process fetches the same model ({}); waiting", lock.display());
            }
            _ => self.finish(),
        }
    }

    fn load(&mut self, done: u64, total: u64) {
        self.update("loading".to_owned(), done, Some(total));
        if done >= total {
            self.finish();
        }
    }
}
