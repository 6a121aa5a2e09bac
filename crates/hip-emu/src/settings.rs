//! What the environment asks for, and what a program changes later by `hip_emu_set`.

use std::{
    path::PathBuf,
    sync::{LazyLock, Mutex, PoisonError},
    time::Duration,
};

use crate::profile::{self, PROFILES, Profile};

/// The order in which the threads of a block are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Forward,
    Reverse,
    Random,
}

/// How much is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Check {
    /// What the real runtime would refuse.
    Off,
    /// All that costs little.
    Strict,
    /// What costs a pass over the memory of each copy and launch, too.
    Full,
}

/// What becomes of pageable memory in an asynchronous copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pageable {
    /// Copied aside before the call returns, as the real runtime does.
    Stage,
    /// The same, and told as a violation.
    Flag,
}

/// All settings.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) profile: Profile,
    /// Bytes of the device's own memory.
    pub(crate) pool: u64,
    /// Bytes that the host can give to the device.
    pub(crate) host_pool: u64,
    pub(crate) order: Order,
    pub(crate) seed: u64,
    pub(crate) check: Check,
    pub(crate) pageable: Pageable,
    /// Every queued operation waits so long before it begins.
    pub(crate) delay: Duration,
    /// Device memory begins and ends at multiples of it.
    pub(crate) align: usize,
    /// So many bytes of fresh memory are filled with a pattern.
    pub(crate) poison: usize,
    /// Bytes of a thread's stack.
    pub(crate) stack: usize,
    /// Violations are appended to it.
    pub(crate) report: Option<PathBuf>,
    /// The C++ compiler; the first found of a list where it is not named.
    pub(crate) compiler: Option<PathBuf>,
    /// Compiled kernels are not optimised by more than this: 0 to 3.
    pub(crate) opt_level: u8,
    /// What is still alive at the end of the process is told.
    pub(crate) leaks: bool,
    /// What is put for what in the text of kernels, once a file: a fault that is planted.
    pub(crate) edit: Option<(String, String)>,
    /// A file for the counts of calls, at the end of the process.
    pub(crate) calls: Option<PathBuf>,
}

/// The names that can be set, in the environment or by `hip_emu_set`.
pub(crate) const NAMES: [&str; 18] = [
    "HIP_EMU_DEVICE",
    "HIP_EMU_POOL_BYTES",
    "HIP_EMU_HOST_POOL_BYTES",
    "HIP_EMU_ORDER",
    "HIP_EMU_SEED",
    "HIP_EMU_CHECK",
    "HIP_EMU_PAGEABLE",
    "HIP_EMU_DELAY_US",
    "HIP_EMU_ALIGN",
    "HIP_EMU_POISON_BYTES",
    "HIP_EMU_STACK_BYTES",
    "HIP_EMU_REPORT",
    "HIP_EMU_CXX",
    "HIP_EMU_OPT",
    "HIP_EMU_LEAKS",
    "HIP_EMU_CALLS",
    "HIP_EMU_EDIT",
    "HIP_EMU_FAIL",
];

impl Settings {
    fn plain() -> Self {
        Settings {
            profile: PROFILES[0],
            pool: PROFILES[0].pool,
            host_pool: u64::MAX,
            order: Order::Forward,
            seed: 1,
            check: Check::Strict,
            pageable: Pageable::Stage,
            delay: Duration::ZERO,
            align: 256,
            poison: 64 << 20,
            stack: 64 << 10,
            report: None,
            compiler: None,
            opt_level: 2,
            leaks: false,
            edit: None,
            calls: None,
        }
    }

    /// Changes one.
    ///
    /// # Errors
    /// What the value should be.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let number = || value.parse::<u64>().map_err(|_| format!("{name}={value}: a number is wanted"));
        let word = |wanted: &str| Err(format!("{name}={value}: it is one of {wanted}"));
        match name {
            "HIP_EMU_DEVICE" => match profile::find(value) {
                Some(profile) => (self.profile, self.pool) = (profile, profile.pool),
                None => return word(&PROFILES.map(|p| p.short).join(", ")),
            },
            "HIP_EMU_POOL_BYTES" => self.pool = number()?,
            "HIP_EMU_HOST_POOL_BYTES" => self.host_pool = number()?,
            "HIP_EMU_ORDER" => {
                self.order = match value {
                    "forward" => Order::Forward,
                    "reverse" => Order::Reverse,
                    "random" => Order::Random,
                    _ => return word("forward, reverse, random"),
                }
            }
            "HIP_EMU_SEED" => self.seed = number()?,
            "HIP_EMU_CHECK" => {
                self.check = match value {
                    "off" => Check::Off,
                    "strict" => Check::Strict,
                    "full" => Check::Full,
                    _ => return word("off, strict, full"),
                }
            }
            "HIP_EMU_PAGEABLE" => {
                self.pageable = match value {
                    "stage" => Pageable::Stage,
                    "flag" => Pageable::Flag,
                    _ => return word("stage, flag"),
                }
            }
            "HIP_EMU_DELAY_US" => self.delay = Duration::from_micros(number()?),
            "HIP_EMU_ALIGN" => match number()? {
                n @ 1..=4096 if n.is_power_of_two() => self.align = n as usize,
                _ => return Err(format!("{name}={value}: a power of two up to 4096 is wanted")),
            },
            "HIP_EMU_POISON_BYTES" => self.poison = number()? as usize,
            "HIP_EMU_STACK_BYTES" => self.stack = number()?.clamp(16 << 10, 16 << 20) as usize,
            "HIP_EMU_REPORT" => self.report = (!value.is_empty()).then(|| value.into()),
            "HIP_EMU_CXX" => self.compiler = (!value.is_empty()).then(|| value.into()),
            "HIP_EMU_OPT" => self.opt_level = number()?.min(3) as u8,
            "HIP_EMU_EDIT" => {
                self.edit = match value.split_once("=>") {
                    Some((old, new)) if !old.is_empty() => Some((old.to_owned(), new.to_owned())),
                    None if value.is_empty() => None,
                    _ => return Err(format!("{name}={value}: OLD=>NEW is wanted")),
                }
            }
            "HIP_EMU_CALLS" => self.calls = (!value.is_empty()).then(|| value.into()),
            "HIP_EMU_LEAKS" => self.leaks = number()? != 0,
            _ => return Err(format!("there is no setting {name}; there are {}", NAMES.join(", "))),
        }
        Ok(())
    }
}

static SETTINGS: LazyLock<Mutex<Settings>> = LazyLock::new(|| {
    let mut settings = Settings::plain();
    for name in NAMES.iter().filter(|&&name| name != "HIP_EMU_FAIL") {
        if let Some(value) = std::env::var_os(name).filter(|v| !v.is_empty())
            && let Err(error) = settings.set(name, &value.to_string_lossy())
        {
            crate::report::say(&error);
        }
    }
    Mutex::new(settings)
});

/// The settings as they are now.
pub(crate) fn get() -> Settings {
    SETTINGS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Changes one; see [`Settings::set`].
pub(crate) fn set(name: &str, value: &str) -> Result<(), String> {
    SETTINGS.lock().unwrap_or_else(PoisonError::into_inner).set(name, value)
}
