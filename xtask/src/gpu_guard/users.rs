//! Which other processes use a GPU.

use std::{
    collections::BTreeSet,
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::Duration,
};

use anyhow::{Context, Result, bail};

/// Where the kernel's driver tells of AMD GPUs.
pub(super) const KFD: &str = "/sys/class/kfd/kfd";

/// How long until a list is looked at again that names a process which is gone.
const AGAIN: Duration = Duration::from_millis(100);

/// A process that uses a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    pub(super) pid: u32,
    /// The name of its program; `?` if it is gone, or of another namespace.
    pub(super) name: String,
    /// Who says so.
    pub(super) seen_by: &'static str,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({}, seen by {})", self.pid, self.name, self.seen_by)
    }
}

/// Where to look.
#[derive(Debug)]
pub(super) struct Probe {
    /// `proc` below the driver's folder.
    kfd: Option<PathBuf>,
    nvidia_smi: Option<PathBuf>,
    /// This process and those that it started, as far as they were seen: a driver may list one for a while when it is gone.
    own: BTreeSet<u32>,
}

impl Probe {
    /// Looks which drivers are there.
    ///
    /// # Errors
    /// If neither is: then nobody could be seen.
    pub(super) fn open(kfd: &Path, nvidia_smi: &Path) -> Result<Self> {
        let probe = Probe {
            kfd: Some(kfd.join("proc")).filter(|proc| proc.is_dir()),
            nvidia_smi: pids(nvidia_smi).is_ok().then(|| nvidia_smi.to_owned()),
            own: BTreeSet::from([std::process::id()]),
        };
        if probe.kfd.is_none() && probe.nvidia_smi.is_none() {
            bail!(
                "no GPU to guard: {} is not there, and {} does not list the processes of one",
                kfd.join("proc").display(),
                nvidia_smi.display()
            );
        }
        Ok(probe)
    }

    /// Counts a process as this one's.
    pub(super) fn add(&mut self, pid: u32) {
        self.own.insert(pid);
    }

    /// Processes that use a GPU, without this one and those that it started.
    ///
    /// # Errors
    /// If a driver that answered before does not answer any more.
    pub(super) fn others(&mut self) -> Result<Vec<User>> {
        let foreign = self.foreign()?;
        // One that is gone may have been our own. If it stays on the list, it is of another namespace of processes.
        if foreign.iter().any(|(pid, _)| parent(*pid).is_none()) {
            sleep(AGAIN);
            let still = self.foreign()?;
            let there = |row: &&(u32, &'static str)| parent(row.0).is_some() || still.contains(row);
            return Ok(foreign.iter().filter(there).map(user).collect());
        }
        Ok(foreign.iter().map(user).collect())
    }

    /// Those on the lists of the drivers that are not below this process.
    fn foreign(&mut self) -> Result<Vec<(u32, &'static str)>> {
        let mut found = Vec::new();
        if let Some(kfd) = &self.kfd {
            found.extend(kfd_pids(kfd)?.into_iter().map(|pid| (pid, "KFD")));
        }
        if let Some(program) = &self.nvidia_smi {
            found.extend(pids(program)?.into_iter().map(|pid| (pid, "NVML")));
        }
        found.retain(|(pid, _)| !self.is_own(*pid));
        Ok(found)
    }

    /// Whether a process is this one, or was started by it or by one that was. What it learns it keeps.
    fn is_own(&mut self, pid: u32) -> bool {
        let mut line = vec![pid];
        // Longer than any chain of parents; a number that is used again could make a circle.
        for _ in 0..256 {
            let Some(&last) = line.last() else { return false };
            if self.own.contains(&last) {
                self.own.extend(line);
                return true;
            }
            match parent(last) {
                Some(next) if next != 0 => line.push(next),
                _ => return false,
            }
        }
        false
    }
}

fn user(row: &(u32, &'static str)) -> User {
    User { pid: row.0, name: name(row.0), seen_by: row.1 }
}

/// Processes with memory of an AMD GPU, a queue on it, or bytes that its copy engines moved. One that has merely opened the
/// driver, as monitors do, does not disturb.
fn kfd_pids(proc: &Path) -> Result<Vec<u32>> {
    let entries = fs::read_dir(proc).with_context(|| format!("cannot list {}", proc.display()))?;
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        found.extend(pid.filter(|_| uses(&entry.path())));
    }
    found.sort_unstable();
    Ok(found)
}

/// What `/sys/class/kfd/kfd/proc/<pid>` says: `vram_<gpu>` in bytes, `sdma_<gpu>` in microseconds, and a folder for each queue.
fn uses(process: &Path) -> bool {
    // A process that ends takes its folder with it.
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    let counts =
        |path: PathBuf| fs::read_to_string(path).is_ok_and(|n| n.trim().parse::<u64>().is_ok_and(|n| n > 0));
    entries(process).any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        match name.as_ref() {
            "queues" => entries(&entry.path()).next().is_some(),
            name => (name.starts_with("vram_") || name.starts_with("sdma_")) && counts(entry.path()),
        }
    })
}

/// The processes that `nvidia-smi` lists.
fn pids(program: &Path) -> Result<Vec<u32>> {
    let mut command = Command::new(program);
    command.args(["--query-compute-apps=pid", "--format=csv,noheader"]);
    let output = command.output().with_context(|| format!("cannot run {}", program.display()))?;
    if !output.status.success() {
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}: {}", program.display(), output.status, said.trim());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| line.trim().parse().ok()).collect())
}

/// The fourth field of `/proc/<pid>/stat`. The second is a name in brackets, which may hold anything.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn name(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if name.trim().is_empty() { "?".to_owned() } else { name.trim().to_owned() }
}
