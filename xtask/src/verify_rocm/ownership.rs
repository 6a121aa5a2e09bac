//! Who owns what: models come and go and leave nothing, and whatever call of HIP fails, the program says so in words,
//! gives everything back, and ends.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use super::emu::{Emu, PROFILES, Profile};
use crate::outcome::Outcome;

/// A discrete GPU uses staging, events and copies, which an APU does without.
const DEVICE: &str = PROFILES[1];

/// A run that takes longer hangs. It takes a second.
const PATIENCE: Duration = Duration::from_secs(120);

/// Calls that give something back: what they were made to leave is no leak of ours.
const GIVING_BACK: [&str; 8] = [
    "hipFree",
    "hipHostFree",
    "hipEventDestroy",
    "hipStreamDestroy",
    "hipModuleUnload",
    "hipGraphDestroy",
    "hipGraphExecDestroy",
    "hiprtcDestroyProgram",
];

/// Calls whose work is done later, so that their errors come later too.
const QUEUED: [&str; 4] = ["hipMemcpyAsync", "hipMemsetAsync", "hipModuleLaunchKernel", "hipGraphLaunch"];

/// hipErrorOutOfMemory, hipErrorUnknown, hipErrorLaunchFailure.
const MEMORY: u32 = 2;
const UNKNOWN: u32 = 999;
const LAUNCH: u32 = 719;

/// Models come and go; then each call fails in turn, or some of each function's if not `full`.
pub(super) fn gate(root: &Path, full: bool) -> Result<Outcome> {
    let emu = match Emu::build(root)? {
        Ok(emu) => emu,
        Err(reason) => return Ok(Outcome::Skipped(reason)),
    };
    let mut findings = Vec::new();
    for device in PROFILES {
        let profile = emu.profile(device).with("HIP_EMU_CHECK", "full").with("HIP_EMU_DELAY_US", 200);
        // The last one launches a kernel that is refused, which the emulator objects to.
        let but_refused: &[&str] = &["--skip", "errors_name_the_kernel"];
        for (package, test, names) in [("portolan", "reload", &[][..]), ("device", "rocm", but_refused)] {
            let found = profile.faults(package, test, names)?;
            findings.extend(found.into_iter().map(|finding| format!("{device}, {test}: {finding}")));
        }
    }
    let sweep = Sweep::new(&emu)?;
    let faults = faults(&sweep.calls, full);
    findings.extend(sweep.run(&faults)?);
    let all: u64 = sweep.calls.iter().map(|(_, count)| count).sum();
    let what = format!(
        "models come and go on {PROFILES:?}; {} faults in {} functions ({all} calls)",
        faults.len(),
        sweep.calls.len()
    );
    Ok(Outcome::of(what, findings))
}

/// A call that is made to fail.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fault {
    call: String,
    /// From 1.
    nth: u64,
    code: u32,
    late: bool,
}

impl Fault {
    fn text(&self) -> String {
        let Fault { call, nth, code, late } = self;
        format!("{call}:{nth}:{code}{}", if *late { ":late" } else { "" })
    }

    fn is_compiler(&self) -> bool {
        self.call.starts_with("hiprtc")
    }
}

/// The faults of functions that were called so often: every call, or its first, middle and last.
fn faults(calls: &[(String, u64)], full: bool) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (call, count) in calls {
        let mut picks: Vec<u64> =
            if full { (1..=*count).collect() } else { vec![1, count.div_ceil(2), *count] };
        // A kernel is compiled before each of these, which takes long.
        if call.starts_with("hiprtc") && !full {
            picks.truncate(1);
        }
        picks.dedup();
        let code = if call.ends_with("Malloc") { MEMORY } else { UNKNOWN };
        for nth in picks {
            faults.push(Fault { call: call.clone(), nth, code, late: false });
            if QUEUED.contains(&call.as_str()) {
                faults.push(Fault { call: call.clone(), nth, code: LAUNCH, late: true });
            }
        }
    }
    faults
}

/// A small model, run again and again.
struct Sweep<'a> {
    emu: &'a Emu,
    /// How often each function is called where nothing fails.
    calls: Vec<(String, u64)>,
    /// The bytes of the result.
    expected: Vec<u8>,
}

/// How a run ended.
#[derive(Debug, Default, Clone)]
struct End {
    /// Its exit status; none if a signal ended it, or our patience.
    code: Option<i32>,
    hangs: bool,
    stderr: String,
    violations: Vec<String>,
    result: Option<Vec<u8>>,
}

impl<'a> Sweep<'a> {
    fn new(emu: &'a Emu) -> Result<Self> {
        let mut sweep = Sweep { emu, calls: Vec::new(), expected: Vec::new() };
        // With kernels to compile, so that the compiler's calls are counted too.
        let counts = emu.path("calls");
        let profile = sweep.profile("cold").with("HIP_EMU_CALLS", counts.display());
        let end = sweep.one(&profile, "calls")?;
        let counts = fs::read_to_string(&counts).with_context(|| format!("nothing was counted: {end:?}"))?;
        for line in counts.lines() {
            let (name, count) = line.split_once(' ').context("a line of counts is NAME COUNT")?;
            sweep.calls.push((name.to_owned(), count.parse()?));
        }
        sweep.expected = end.result.clone().with_context(|| format!("no result without a fault: {end:?}"))?;
        anyhow::ensure!(end.violations.is_empty(), "violations without a fault: {:?}", end.violations);
        Ok(sweep)
    }

    /// A device; `cold` with a cache of kernels of this name, which is empty.
    fn profile(&self, cold: &str) -> Profile<'a> {
        let profile = self.emu.profile(DEVICE);
        if cold.is_empty() {
            profile
        } else {
            profile.with("PORTOLAN_CACHE_DIR", self.emu.path(cold).display())
        }
    }

    /// Every step of a short text by itself: a load, a prefill, captured steps, replayed ones.
    fn one(&self, profile: &Profile<'_>, name: &str) -> Result<End> {
        let result = self.emu.path(&format!("{name}.safetensors"));
        let mut command = profile.portolan();
        command.args(["logits", "-m", "crates/testkit/data/tiny/llama", "--ids", "1,2,3,4,5,6"]);
        command.args(["--greedy", "3", "--chunk", "1", "--exact", "--device", "rocm", "-o"]).arg(&result);
        let mut end = ended(command)?;
        end.violations = profile.violations()?;
        end.result = fs::read(&result).ok();
        let _ = fs::remove_file(&result);
        Ok(end)
    }

    /// Runs every fault, on all cores, and says what is wrong.
    fn run(&self, faults: &[Fault]) -> Result<Vec<String>> {
        let (next, findings) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || -> Result<()> {
            while let Some(fault) = faults.get(next.fetch_add(1, Ordering::Relaxed)) {
                let name = fault.text().replace(':', "-");
                let cold = if fault.is_compiler() { format!("cold-{name}") } else { String::new() };
                let profile = self.profile(&cold).with("HIP_EMU_FAIL", fault.text());
                let end = self.one(&profile, &name)?;
                let found = judge(fault, &end, &self.expected);
                let found = found.into_iter().map(|finding| format!("{}: {finding}", fault.text()));
                findings.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
            }
            Ok(())
        };
        let threads = thread::available_parallelism().map_or(1, |n| n.get());
        thread::scope(|scope| {
            let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            handles
                .into_iter()
                .try_for_each(|handle| handle.join().map_err(|_| anyhow::anyhow!("a panic"))?)
        })?;
        let mut findings = findings.into_inner().unwrap_or_else(PoisonError::into_inner);
        findings.sort();
        Ok(findings)
    }
}

/// Runs a program to its end, if that comes in time.
fn ended(mut command: Command) -> Result<End> {
    let said = tempfile::NamedTempFile::new()?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said.reopen()?);
    let mut child = command.spawn().context("cannot run portolan")?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if start.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            break None;
        }
        thread::sleep(Duration::from_millis(5));
    };
    let stderr = String::from_utf8_lossy(&fs::read(said.path())?).into_owned();
    Ok(End { code: status.and_then(|s| s.code()), hangs: status.is_none(), stderr, ..End::default() })
}

/// What is wrong with how a run ended in which a call failed. It may do without the call, and then its result is the
/// same; or it ends with an error in words.
fn judge(fault: &Fault, end: &End, expected: &[u8]) -> Vec<String> {
    let mut findings = Vec::new();
    let words = end.stderr.lines().find(|line| line.starts_with("error: "));
    match end.code {
        _ if end.hangs => findings.push(format!("it hangs: more than {} s", PATIENCE.as_secs())),
        Some(0) if end.result.as_deref() == Some(expected) => {}
        Some(0) => findings.push("it went on, and to another result".to_owned()),
        Some(_) if end.stderr.contains("panicked") => findings.push(format!("it panicked: {}", end.stderr)),
        Some(_) if words.is_some() => {}
        Some(code) => findings.push(format!("it ended with {code} and no error in words: {}", end.stderr)),
        None => findings.push(format!("a signal ended it: {}", end.stderr)),
    }
    if !end.stderr.contains("as it was told to") {
        findings.push("the call was never made".to_owned());
    }
    let is_ours = |violation: &&String| {
        let leaves = GIVING_BACK.contains(&fault.call.as_str()) && fault.code != 0;
        !(leaves && violation.starts_with("leak"))
    };
    findings.extend(end.violations.iter().filter(is_ours).cloned());
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(call: &str, code: u32) -> Fault {
        Fault { call: call.to_owned(), nth: 1, code, late: false }
    }

    #[test]
    fn every_call_fails_or_three_of_each() {
        let calls =
            [("hipFree".to_owned(), 5), ("hipMalloc".to_owned(), 1), ("hipMemsetAsync".to_owned(), 2)];
        let texts = |full| faults(&calls, full).iter().map(Fault::text).collect::<Vec<_>>().join(" ");
        let few = "hipFree:1:999 hipFree:3:999 hipFree:5:999 hipMalloc:1:2 hipMemsetAsync:1:999 \
                   hipMemsetAsync:1:719:late hipMemsetAsync:2:999 hipMemsetAsync:2:719:late";
        assert_eq!(texts(false), few);
        assert_eq!(faults(&calls, true).len(), 5 + 1 + 4);
        assert_eq!(faults(&[("hiprtcGetCode".to_owned(), 9)], false).len(), 1);
    }

    #[test]
    fn a_run_is_judged() {
        let told = "hip-emu: hipMalloc fails with 2, as it was told to\n";
        let good = End { code: Some(0), stderr: told.into(), result: Some(vec![7]), ..End::default() };
        let error = End { code: Some(1), stderr: format!("{told}error: no memory\n"), ..End::default() };
        let leak = vec!["leak: 4 bytes".to_owned()];
        let malloc = fault("hipMalloc", 2);
        for (fault, end, says) in [
            (&malloc, good.clone(), &[][..]),
            (&malloc, error.clone(), &[]),
            (&malloc, End { hangs: true, code: None, ..error.clone() }, &["hangs"]),
            (&malloc, End { result: Some(vec![8]), ..good.clone() }, &["another result"]),
            (&malloc, End { stderr: format!("{told}thread panicked"), ..error.clone() }, &["panicked"]),
            (&malloc, End { stderr: told.into(), ..error.clone() }, &["no error in words"]),
            (&malloc, End { code: None, ..error.clone() }, &["a signal"]),
            (&malloc, End { stderr: String::new(), ..good.clone() }, &["never made"]),
            (&malloc, End { violations: leak.clone(), ..error.clone() }, &["leak"]),
            (&fault("hipFree", 999), End { violations: leak.clone(), ..good.clone() }, &[]),
            (&fault("hipFree", 0), End { violations: leak, ..good }, &["leak"]),
        ] {
            let found = judge(fault, &end, &[7]);
            assert_eq!(found.len(), says.len(), "{found:?}");
            assert!(found.iter().zip(says).all(|(found, says)| found.contains(says)), "{found:?}");
        }
    }

    /// Error 0 leaves the call out in silence: what a program does that forgets it.
    #[test]
    fn a_free_that_is_dropped_is_found() {
        let emu = match Emu::build(&crate::tree::root()).unwrap() {
            Ok(emu) => emu,
            Err(reason) => return portolan_testkit::skipped(&reason),
        };
        let sweep = Sweep::new(&emu).unwrap();
        assert_eq!(sweep.run(&[fault("hipModuleGetFunction", 999)]).unwrap(), Vec::<String>::new());
        for call in ["hipFree", "hipHostFree", "hipModuleUnload"] {
            let found = sweep.run(&[fault(call, 0)]).unwrap();
            assert!(found.iter().any(|finding| finding.contains("leak")), "{call}: {found:?}");
        }
    }
}
