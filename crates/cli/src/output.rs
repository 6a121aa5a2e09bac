//! Standard output carries what was asked for and nothing else; everything about it goes to stderr.

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use anyhow::Context;
use portolan::{
    GenerationStats, ModelInfo, Summary,
    weights::{LoadTransferStats, human_bytes},
};

/// Sends warnings, and more when asked, to stderr. `PORTOLAN_DEBUG_KERNELS` shows its own lines.
pub(crate) fn start_log(verbose: u8) {
    let level = match verbose {
        0 => "warn,portolan::ports=info",
        1 => "info",
        _ => "debug",
    };
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::new(level))
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .without_time()
        .init();
}

pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe))
}

/// An error with its causes, but for those that its text already tells.
pub(crate) fn describe(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Writes text out at once.
pub(crate) fn print_now(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("writing to standard output")
}

/// A line with what was loaded, for a person.
pub(crate) fn loaded_line(info: &ModelInfo) -> String {
    let seconds = info.load.wall.as_secs_f64();
    format!(
        "{} on {}: {} in {seconds:.2} s, context {}",
        info.family,
        info.device,
        human_bytes(info.load.bytes),
        info.context
    )
}

/// A line with counts and rates, for a person.
pub(crate) fn rates_line(stats: &GenerationStats) -> String {
    let reused = match stats.reused_tokens {
        0 => String::new(),
        n => format!(" ({n} from the cache)"),
    };
    format!(
        "prompt {} tokens{reused}, {:.1} tok/s; text {} tokens, {:.1} tok/s",
        stats.prompt_tokens,
        stats.prefill_rate(),
        stats.generated_tokens,
        stats.decode_rate()
    )
}

/// What `--profile` prints: the load leg by leg, and the generation.
pub(crate) fn print_profile(info: &ModelInfo, summary: &Summary) {
    let stats = &summary.stats;
    eprintln!("device              {}", info.device);
    eprintln!("kernels             {:.1} ms", ms(info.prepare_time));
    eprintln!(
        "load                {:.1} ms, {:.2} GB/s",
        ms(info.load.wall),
        info.load.load_gb_per_s().unwrap_or(0.0)
    );
    eprintln!("resident weights    {} bytes, of {} reserved", info.load.bytes, info.load.arena_bytes);
    eprintln!("not read            {} tensors, {} bytes", info.load.unused_tensors, info.load.unused_bytes);
    print_transfers("load", &info.load);
    print_transfers("prefill", &summary.transfers.since(&info.load));
    eprintln!("queue               {:.1} ms", ms(stats.queue_time));
    eprintln!("prefill             {:.1} ms, {:.1} tok/s", ms(stats.prefill_time), stats.prefill_rate());
    eprintln!("load + first token  {:.1} ms", ms(info.load.wall + stats.prefill_time));
    eprintln!("decode              {:.1} ms, {:.1} tok/s", ms(stats.decode_time), stats.decode_rate());
    eprintln!("{}; {}", rates_line(stats), summary.reason.name());
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// What went to the device in a part of the run: counts first, then the legs.
fn print_transfers(part: &str, done: &LoadTransferStats) {
    eprintln!(
        "{:<19} tensors pinned {}, pageable {}, direct {}; {} copies of {} bytes",
        format!("{part}: uploads"),
        done.pinned_tensors,
        done.pageable_tensors,
        done.direct_tensors,
        done.copies,
        done.bytes
    );
    if done.bytes == 0 {
        return;
    }
    let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |r| format!("{r:.2}"));
    eprintln!(
        "{:<19} read {} bytes in {} reads, {:.1} ms over {} readers, {} GB/s; convert {:.1} ms; slot wait {:.1} ms; \
         enqueue {:.1} ms; copies {} GB/s; cross-stream waits {}; pinned peak {} bytes; limit: {}",
        format!("{part}: legs"),
        done.read_bytes,
        done.reads,
        ms(done.read_time),
        done.readers,
        rate(done.read_gb_per_s()),
        ms(done.convert_time),
        ms(done.slot_wait),
        ms(done.enqueue_time),
        rate(done.copy_gb_per_s()),
        done.cross_stream_waits,
        done.pinned_peak,
        done.limit()
    );
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[track_caller]
    fn check(error: anyhow::Error, expected: &str) {
        assert_eq!(describe(&error), expected);
    }

    #[test]
    fn causes_are_told_once() {
        check(anyhow!("denied"), "denied");
        check(anyhow!("denied").context("a.txt"), "a.txt: denied");
        check(anyhow!("denied").context("a.txt: denied"), "a.txt: denied");
    }
}
