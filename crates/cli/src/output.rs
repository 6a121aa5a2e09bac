//! Standard output carries what was asked for and nothing else; everything about it goes to stderr.

use std::io::{self, IsTerminal, Write};

use portolan::{GenerationStats, ModelInfo, Summary, weights::human_bytes};

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
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
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
    let load = &info.load;
    let stats = &summary.stats;
    let ms = |d: std::time::Duration| d.as_secs_f64() * 1e3;
    let gbps = |bytes: u64, d: std::time::Duration| bytes as f64 / d.as_secs_f64().max(1e-9) / 1e9;
    eprintln!("device              {}", info.device);
    eprintln!("load                {:.1} ms, {:.2} GB/s", ms(load.wall), gbps(load.bytes, load.wall));
    eprintln!("resident weights    {} bytes", load.bytes);
    eprintln!(
        "tensors             pinned {}, pageable {}, direct {}; not read {} ({} bytes)",
        load.pinned_tensors,
        load.pageable_tensors,
        load.direct_tensors,
        load.unused_tensors,
        load.unused_bytes
    );
    eprintln!(
        "read leg            {} bytes in {} reads, {:.1} ms over all readers, {:.2} GB/s a reader",
        load.read_bytes,
        load.reads,
        ms(load.read_time),
        gbps(load.read_bytes, load.read_time)
    );
    eprintln!("convert leg         {:.1} ms over all threads", ms(load.convert_time));
    eprintln!(
        "copies              {}, enqueue {:.1} ms, slot wait {:.1} ms, cross-stream waits {}, pinned peak {} bytes",
        load.copies,
        ms(load.enqueue_time),
        ms(load.slot_wait),
        load.cross_stream_waits,
        load.pinned_peak
    );
    eprintln!("limit of the load   {}", load.limit());
    eprintln!("queue               {:.1} ms", ms(stats.queue_time));
    eprintln!("prefill             {:.1} ms, {:.1} tok/s", ms(stats.prefill_time), stats.prefill_rate());
    eprintln!("load + first token  {:.1} ms", ms(load.wall + stats.prefill_time));
    eprintln!("decode              {:.1} ms, {:.1} tok/s", ms(stats.decode_time), stats.decode_rate());
    eprintln!("{}; {}", rates_line(stats), summary.reason.name());
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
