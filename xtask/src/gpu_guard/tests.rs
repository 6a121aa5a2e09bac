use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use clap::Parser;
use tempfile::TempDir;

use super::*;

/// A machine with the given drivers: `kfd/` is sysfs, `smi` a program that prints the file `listed`.
struct Machine(TempDir);

impl Machine {
    fn new(has_kfd: bool, has_nvml: bool) -> Self {
        let machine = Machine(tempfile::tempdir().unwrap());
        if has_kfd {
            fs::create_dir_all(machine.path("kfd/proc")).unwrap();
        }
        if has_nvml {
            machine.script("smi", &format!("cat {}", machine.path("listed").display()));
            fs::write(machine.path("listed"), "").unwrap();
        }
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn script(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// What sysfs says of a process, by the name of a file.
    fn kfd(&self, pid: u32, file: &str, text: &str) {
        let path = self.path("kfd/proc").join(pid.to_string()).join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn probe(&self) -> Result<Probe> {
        Probe::open(&self.path("kfd"), &self.path("smi"))
    }

    fn seen(&self) -> Vec<(u32, &'static str)> {
        self.probe().unwrap().others().unwrap().iter().map(|user| (user.pid, user.seen_by)).collect()
    }

    /// Runs the guard over commands, to a status and a report.
    fn guard(&self, words: &[&str]) -> (u8, serde_json::Value) {
        let args = Args {
            idle_secs: 0,
            json: Some(self.path("report")),
            commands: words.iter().map(|word| (*word).to_owned()).collect(),
            kfd: self.path("kfd"),
            nvidia_smi: self.path("smi"),
        };
        let status = run(&args).unwrap();
        (status, serde_json::from_str(&fs::read_to_string(self.path("report")).unwrap()).unwrap())
    }
}

/// The first process of the machine is no child of a test.
const OTHER: u32 = 1;

#[test]
fn who_uses_a_gpu_is_seen() {
    let machine = Machine::new(true, true);
    assert_eq!(machine.seen(), []);
    machine.kfd(OTHER, "pasid", "32770");
    machine.kfd(OTHER, "vram_1234", "0\n");
    assert_eq!(machine.seen(), [], "it has only opened the driver");
    machine.kfd(OTHER, "vram_1234", "4096\n");
    assert_eq!(machine.seen(), [(OTHER, "KFD")]);
    machine.kfd(OTHER, "vram_1234", "0\n");
    machine.kfd(OTHER, "sdma_1234", "17\n");
    assert_eq!(machine.seen(), [(OTHER, "KFD")]);
    machine.kfd(OTHER, "sdma_1234", "0\n");
    machine.kfd(OTHER, "queues/0/gpuid", "1234\n");
    assert_eq!(machine.seen(), [(OTHER, "KFD")]);
    fs::remove_dir_all(machine.path("kfd/proc/1")).unwrap();
    fs::write(machine.path("listed"), format!("{OTHER}\n[N/A]\n")).unwrap();
    assert_eq!(machine.seen(), [(OTHER, "NVML")]);
    let own = std::process::id();
    fs::write(machine.path("listed"), format!("{own}\n")).unwrap();
    assert_eq!(machine.seen(), [], "it is this process");
}

#[test]
fn processes_that_the_guard_started_are_its_own() {
    let machine = Machine::new(false, true);
    let mut shell = Command::new("sh");
    shell.args(["-c", "sleep 60 & echo $!; wait"]).stdout(std::process::Stdio::piped());
    let mut child = shell.spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    fs::write(machine.path("listed"), format!("{}\n{line}", child.id())).unwrap();
    let mut probe = machine.probe().unwrap();
    let alive = probe.others().unwrap();
    Command::new("kill").arg(line.trim()).status().unwrap();
    child.wait().unwrap();
    assert_eq!((alive, probe.others().unwrap()), (vec![], vec![]), "and when they are gone");
}

#[test]
fn a_process_that_is_gone_counts_only_while_it_is_listed() {
    const GONE: u32 = 2_000_000_000;
    let machine = Machine::new(false, true);
    fs::write(machine.path("listed"), format!("{GONE}\n")).unwrap();
    assert_eq!(machine.seen(), [(GONE, "NVML")], "it is of another namespace");
    // Listed once, when it is looked for the second time: the first is to see whether the program answers.
    let looks = machine.path("looks");
    let once = format!("echo >> {0}; [ $(wc -l < {0}) -ne 2 ] || echo {GONE}", looks.display());
    machine.script("smi", &once);
    assert_eq!(machine.seen(), []);
}

#[test]
fn without_a_gpu_it_says_so() {
    let machine = Machine::new(false, false);
    let error = format!("{:#}", machine.probe().unwrap_err());
    assert!(error.contains("no GPU to guard") && error.contains("kfd/proc"), "{error}");
    machine.script("smi", "echo 'NVIDIA-SMI has failed'; exit 9");
    assert!(machine.probe().is_err());
}

#[test]
fn the_status_is_the_commands_own() {
    for machine in [Machine::new(true, false), Machine::new(false, true)] {
        assert_eq!(machine.guard(&["true"]).0, 0);
        assert_eq!(machine.guard(&["sh", "-c", "exit 7"]).0, 7);
        assert_eq!(machine.guard(&["sh", "-c", "kill -9 $$"]).0, 137);
        let (status, report) = machine.guard(&["true", "--", "sh", "-c", "exit 5"]);
        assert_eq!((status, report["outcome"].as_str()), (5, Some("UNDISTURBED")));
        assert_eq!(report["runs"][1]["command"], serde_json::json!(["sh", "-c", "exit 5"]));
    }
}

#[test]
fn a_disturbed_run_is_void_and_names_who() {
    let machine = Machine::new(false, true);
    let listed = machine.path("listed");
    let disturb = machine.script("disturb", &format!("echo {OTHER} > {}", listed.display()));
    let (status, report) = machine.guard(&[&disturb, "--", "sh", "-c", "exit 5"]);
    assert_eq!((status, report["outcome"].as_str()), (VOID, Some("VOID")));
    assert_eq!(report["intruder"]["pid"], OTHER);
    assert_eq!(
        report["intruder"]["name"].as_str(),
        fs::read_to_string("/proc/1/comm").ok().as_deref().map(str::trim)
    );
    // The second was not run.
    assert_eq!(report["runs"].as_array().map(Vec::len), Some(1));
}

#[test]
fn it_waits_for_an_idle_gpu() {
    let machine = Machine::new(false, true);
    // The third look finds nobody; so long the window does not begin.
    let looks = machine.path("looks");
    let count = format!("echo >> {0}; [ $(wc -l < {0}) -gt 3 ] || echo {OTHER}", looks.display());
    machine.script("smi", &count);
    let (status, report) = machine.guard(&["true"]);
    assert_eq!((status, report["outcome"].as_str()), (0, Some("UNDISTURBED")));
    assert!(fs::read_to_string(Path::new(&looks)).unwrap().lines().count() > 3);
}

#[test]
fn a_driver_that_stops_answering_ends_the_run() {
    let machine = Machine::new(false, true);
    machine.script("smi", &format!("[ ! -e {} ]", machine.path("gone").display()));
    let mut probe = machine.probe().unwrap();
    fs::write(machine.path("gone"), "").unwrap();
    assert!(watch(&mut probe, &["sleep".to_owned(), "60".to_owned()]).is_err());
}

#[test]
fn commands_stand_between_marks() {
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }
    let parse = |line: &str| {
        let words = format!("guard --idle-secs 9 {line}");
        Line::try_parse_from(words.split(' ')).map(|line| split(&line.args.commands))
    };
    assert_eq!(parse("-- a -x --y").unwrap().unwrap(), [["a", "-x", "--y"]]);
    assert_eq!(parse("-- a 1 -- b 2").unwrap().unwrap(), [["a", "1"], ["b", "2"]]);
    assert!(parse("-- a -- b -- c").unwrap().is_err());
    assert!(parse("-- a --").unwrap().is_err());
    assert!(parse("a").is_err() && parse("--").is_err());
}
