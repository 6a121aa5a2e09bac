//! The front end of a real hipRTC, where one is installed: it reads every variant's text.
//!
//! An old one ends the process at an architecture that it does not know (an item of LOCAL_FIXES.md), so it runs in a child: this
//! program again, with a subcommand that no help names. The child says what it comes to line by line, and how far it came
//! tells what ended it.

use std::{
    fmt::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, anyhow};
use portolan::{
    device::{KernelSource, rocm::Compiler, rocm::arch::Arch},
    kernels::gpu::offline::wanted,
};

use super::{clang::errors, occupancy::TARGETS};
use crate::compile_gate::{jobs, spread};

/// What the child is asked to do.
#[derive(clap::Args)]
pub(crate) struct ChildArgs {
    /// The architecture to compile for.
    #[arg(long)]
    arch: String,
}

/// The subcommand of the child.
const CHILD: &str = "hiprtc-front-end";

/// What the child's lines begin with.
const ABSENT: &str = "absent: ";
const VERSION: &str = "version: ";
const KNOWS: &str = "knows the architecture";
const TAKEN: &str = "taken: ";
const REFUSED: &str = "refused: ";
const DONE: &str = "done";

/// How it ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FrontEnd {
    /// It takes the texts, or is not there. In words.
    Passed(String),
    /// What it refuses.
    Failed(Vec<String>),
}

/// Asks a hipRTC about the newest architecture that it knows, or under `full` about all of them.
///
/// # Errors
/// If the child cannot be started.
pub(super) fn check(program: &Path, full: bool) -> Result<FrontEnd> {
    let (mut known, mut texts, mut findings, mut version) = (Vec::new(), 0, Vec::new(), String::new());
    for target in TARGETS.iter().rev() {
        let said = ask(program, target.name)?;
        if let Some(reason) = value(&said, ABSENT).next() {
            return Ok(FrontEnd::Passed(format!("no hipRTC here ({reason})")));
        }
        version = value(&said, VERSION).next().unwrap_or("hipRTC").to_owned();
        if !said.lines().any(|line| line == KNOWS) {
            continue;
        }
        known.push(target.name);
        texts += value(&said, TAKEN).count();
        findings.extend(value(&said, REFUSED).map(|line| format!("{version}, {}: {line}", target.name)));
        if !said.lines().any(|line| line == DONE) {
            let last = value(&said, TAKEN).last().unwrap_or("nothing");
            findings.push(format!(
                "{version}, {}: the compiler ended the process; the last it took was {last}",
                target.name
            ));
        }
        if !full {
            break;
        }
    }
    Ok(match (findings.is_empty(), known.is_empty()) {
        (false, _) => FrontEnd::Failed(findings),
        (true, true) => FrontEnd::Passed(format!("{version} knows none of the architectures")),
        (true, false) => FrontEnd::Passed(format!("{version} takes {texts} texts for {}", known.join(", "))),
    })
}

/// The compiler's version, or why there is none.
pub(super) fn version() -> String {
    match Compiler::open() {
        Ok(compiler) => format!("hipRTC {}.{}", compiler.version().0, compiler.version().1),
        Err(error) => format!("none: {error}"),
    }
}

/// What the child prints, however it ends.
fn ask(program: &Path, arch: &str) -> Result<String> {
    let mut child = Command::new(program);
    child.args([CHILD, "--arch", arch]).stderr(Stdio::null());
    let output = child.output().with_context(|| format!("cannot run {}", program.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn value<'a>(said: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    said.lines().filter_map(move |line| line.strip_prefix(key))
}

/// The child: prints what the compiler says of one kernel of each variant.
///
/// # Errors
/// If the architecture is none of those of the gate.
pub(crate) fn child(args: &ChildArgs) -> Result<bool> {
    let target = TARGETS.iter().find(|target| target.name == args.arch);
    let target = target.ok_or_else(|| anyhow!("'{}' is not among the gate's architectures", args.arch))?;
    let compiler = match Compiler::open() {
        Ok(compiler) => compiler,
        Err(error) => {
            println!("{ABSENT}{}", one_line(&error.to_string()));
            return Ok(true);
        }
    };
    println!("{VERSION}hipRTC {}.{}", compiler.version().0, compiler.version().1);
    let arch: Arch = target.name.parse()?;
    let text = "extern \"C\" __global__ void empty() {}\n";
    let empty = KernelSource { file: "empty.hip", text, headers: &[], entry: "empty", defines: &[] };
    // A later one says that it does not know the architecture.
    if compiler.compile(&empty, &arch).is_err() {
        println!("{DONE}");
        return Ok(true);
    }
    println!("{KNOWS}");
    let caps = target.caps()?;
    let kernels = spread(wanted(&caps, &super::compile::ACTIVATIONS, &|_, _| true, &|_| true)?, 0);
    for job in jobs(&kernels, &caps) {
        match compiler.compile(&job.source, &arch) {
            Ok(_) => println!("{TAKEN}{}", job.name),
            Err(log) => println!("{REFUSED}{}: {}", job.shown(), one_line(&errors(&log))),
        }
    }
    println!("{DONE}");
    Ok(true)
}

/// The first lines of a log, in one.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    for part in text.lines().map(str::trim).filter(|part| !part.is_empty()).take(6) {
        // Writing to a string does not fail.
        let _ = write!(line, "{}{part}", if line.is_empty() { "" } else { " | " });
    }
    line
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    /// How it ends with a child that is a script; `$3` is the architecture.
    fn with(script: &str, full: bool) -> FrontEnd {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("child");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        check(&path, full).unwrap()
    }

    #[track_caller]
    fn passes(script: &str, full: bool, says: &str) {
        assert_eq!(with(script, full), FrontEnd::Passed(says.to_owned()));
    }

    const KNOWN: &str = "echo 'version: hipRTC 9.0'\necho 'knows the architecture'";

    #[test]
    fn a_compiler_is_asked_about_what_it_knows() {
        passes("echo 'absent: not there'", false, "no hipRTC here (not there)");
        let all = format!("{KNOWN}\necho 'taken: add simt'; echo 'taken: mul simt'; echo done");
        passes(&all, false, "hipRTC 9.0 takes 2 texts for gfx1201");
        passes(
            &all,
            true,
            "hipRTC 9.0 takes 12 texts for gfx1201, gfx1151, gfx1100, gfx1030, gfx942, gfx90a",
        );
        // It ends the process at what it does not know.
        let old = format!(
            "case $3 in gfx1030|gfx90a) ;; *) echo 'version: hipRTC 9.0'; kill -ABRT $$;; esac\n{all}"
        );
        passes(&old, false, "hipRTC 9.0 takes 2 texts for gfx1030");
        passes("echo 'version: hipRTC 9.0'; echo done", false, "hipRTC 9.0 knows none of the architectures");
    }

    #[test]
    fn what_it_refuses_fails() {
        for (script, says) in [
            (
                format!("{KNOWN}\necho 'refused: add simt: error | here'; echo done"),
                "gfx1201: add simt: error | here",
            ),
            (format!("{KNOWN}\necho 'taken: add simt'; kill -ABRT $$"), "the last it took was add simt"),
        ] {
            let FrontEnd::Failed(findings) = with(&script, false) else { panic!("it passes: {script}") };
            assert!(findings.len() == 1 && findings[0].contains(says), "{findings:?}");
        }
    }

    #[test]
    fn a_log_becomes_a_line() {
        assert_eq!(one_line("\n a\n\n  b\n"), "a | b");
    }
}
