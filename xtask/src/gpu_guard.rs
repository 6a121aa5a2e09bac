//! `cargo xtask gpu-guard`: runs a measurement only while no other process uses a GPU, and marks it void if one did.
//!
//! Who uses one is asked of the kernel's driver (KFD, in sysfs) and of `nvidia-smi`, four times a second. A process that came
//! and went between two looks is not seen. The drivers number processes as the machine does, so it runs outside of containers:
//! inside one it would not know its own.

mod report;
mod users;

use std::{
    path::PathBuf,
    process::{Child, Command, ExitCode, ExitStatus},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use report::{Report, Run};
use users::{Probe, User};

/// The status of a run that was disturbed.
const VOID: u8 = 3;

/// When to run, and what.
#[derive(clap::Args)]
#[command(after_help = "Example: cargo xtask gpu-guard --idle-secs 30 -- ./before -- ./after\n\
                        The status is that of the first command that fails, else 0; 3 if another process used a GPU \
                        meanwhile; 2 if nothing was run.")]
pub(crate) struct Args {
    /// Seconds for which no other process must have used a GPU.
    #[arg(long, value_name = "N")]
    idle_secs: u64,
    /// Write what happened to this file too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The command, and after another `--` a second one that runs in the same window.
    #[arg(last = true, required = true, value_name = "CMD")]
    commands: Vec<String>,
    /// Where the driver lists the processes of AMD GPUs.
    #[arg(long, hide = true, default_value = users::KFD)]
    kfd: PathBuf,
    /// The program that lists those of NVIDIA's.
    #[arg(long, hide = true, default_value = "nvidia-smi")]
    nvidia_smi: PathBuf,
}

/// How long between two looks.
const BETWEEN: Duration = Duration::from_millis(250);

/// Waits, runs and reports. The status is the command's own where nothing went wrong.
pub(crate) fn main(args: &Args) -> ExitCode {
    match run(args) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<u8> {
    let commands = split(&args.commands)?;
    let mut probe = Probe::open(&args.kfd, &args.nvidia_smi)?;
    let waited = wait(&mut probe, Duration::from_secs(args.idle_secs))?;
    let mut report = Report { idle_secs: args.idle_secs, waited, runs: Vec::new(), intruder: None };
    for command in commands {
        let (run, intruder) = watch(&mut probe, &command)?;
        report.runs.push(run);
        if let Some(user) = intruder {
            println!("VOID: {user} used a GPU meanwhile");
            report.intruder = Some(user);
            // What is measured in a disturbed window is worth nothing.
            break;
        }
    }
    if let Some(path) = &args.json {
        let text = format!("{:#}\n", report.json());
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(report.status())
}

/// The commands between the marks `--`.
fn split(words: &[String]) -> Result<Vec<Vec<String>>> {
    let commands: Vec<_> = words.split(|word| word == "--").map(<[String]>::to_vec).collect();
    if commands.len() > 2 || commands.iter().any(Vec::is_empty) {
        bail!("give one command after --, or two: -- CMD ARGS -- CMD2 ARGS");
    }
    Ok(commands)
}

/// Waits until no other process has used a GPU for so long; how long that took, in seconds.
fn wait(probe: &mut Probe, idle: Duration) -> Result<f64> {
    let start = Instant::now();
    let (mut since, mut said) = (Instant::now(), None);
    loop {
        let user = probe.others()?.into_iter().next();
        if let Some(user) = user {
            since = Instant::now();
            if said.as_ref() != Some(&user) {
                println!("waiting: {user} uses a GPU");
                said = Some(user);
            }
        } else if since.elapsed() >= idle {
            return Ok(start.elapsed().as_secs_f64());
        }
        sleep(BETWEEN.min(idle.max(Duration::from_millis(1))));
    }
}

/// Runs a command to its end and looks meanwhile, and once after it: who else used a GPU.
fn watch(probe: &mut Probe, command: &[String]) -> Result<(Run, Option<User>)> {
    let [program, arguments @ ..] = command else { bail!("no command") };
    let start = Instant::now();
    let mut child =
        Command::new(program).args(arguments).spawn().with_context(|| format!("cannot run {program}"))?;
    probe.add(child.id());
    let mut intruder = None;
    let status = loop {
        let done = ended(&mut child)?;
        if intruder.is_none() {
            intruder = look(probe, &mut child)?;
        }
        if let Some(status) = done {
            break status;
        }
        sleep(BETWEEN);
    };
    let run = Run { command: command.to_vec(), status: code(status), seconds: start.elapsed().as_secs_f64() };
    Ok((run, intruder))
}

fn ended(child: &mut Child) -> Result<Option<ExitStatus>> {
    child.try_wait().context("cannot wait for the command")
}

/// Who is there; if that cannot be told any more, the command does not go on unwatched.
fn look(probe: &mut Probe, child: &mut Child) -> Result<Option<User>> {
    match probe.others() {
        Ok(users) => Ok(users.into_iter().next()),
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

/// As a shell has it: 128 and the signal for what a signal ended.
fn code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

#[cfg(test)]
mod tests;
