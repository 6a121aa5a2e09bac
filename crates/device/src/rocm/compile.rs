use std::{path::Path, sync::OnceLock};

use super::{
    arch::Arch,
    device::runtime,
    error::unavailable,
    library::{compilers, identity},
    sys::Hip,
};
use crate::{
    DeviceError, DeviceId, KernelSource, Result, env,
    kernel_cache::{self, KernelCache},
    rtc::{HIPRTC, Rtc},
};

const ADVICE: &str = "Install it (your system's package hiprtc or hip-runtime-amd, of the runtime's version), name it \
                      in PORTOLAN_HIPRTC_LIBRARY, or take --device cpu";

/// The first version of HIP whose hipRTC knows RDNA 3; one before it ends the process at what it does not know.
const KNOWS_RDNA3: (u32, u32) = (5, 5);

/// The compiler with what tells it from others.
#[derive(Debug)]
struct Opened {
    rtc: Rtc,
    /// Of the runtime that it belongs to.
    hip: (u32, u32),
    /// For the cache of kernels.
    identity: String,
}

/// The compiler, opened once a process.
fn compiler() -> Result<&'static Opened> {
    static OPENED: OnceLock<Result<Opened>> = OnceLock::new();
    OPENED.get_or_init(|| open(runtime()?)).as_ref().map_err(Clone::clone)
}

fn open(hip: &Hip) -> Result<Opened> {
    // The runtime has started, so it has a version.
    let (major, rest) = hip.version().unwrap_or((0, 0));
    let rtc = find(&hip.path, major, env::path("PORTOLAN_HIPRTC_LIBRARY").as_deref())?;
    tracing::debug!("hipRTC {}.{} from {}", rtc.version.0, rtc.version.1, rtc.path.display());
    let identity =
        format!("hiprtc {}.{}, HIP {major}.{rest}, {}", rtc.version.0, rtc.version.1, identity(&rtc.path));
    Ok(Opened { rtc, hip: (major, rest / 100_000), identity })
}

/// Opens the library that is named, or the one that belongs to a runtime.
fn find(runtime: &Path, major: u32, named: Option<&Path>) -> Result<Rtc> {
    if let Some(path) = named {
        return Rtc::open(path, &HIPRTC)
            .map_err(|e| unavailable(format!("PORTOLAN_HIPRTC_LIBRARY={}: {e}", path.display()), ADVICE));
    }
    for path in compilers(runtime, major) {
        match Rtc::open(&path, &HIPRTC) {
            Ok(rtc) => return Ok(rtc),
            Err(error) => tracing::trace!("{}: {error}", path.display()),
        }
    }
    let reason = format!("the HIP compiler library (libhiprtc.so.{major}) is not there");
    Err(unavailable(reason, ADVICE))
}

/// Whether a compiler of so old a runtime knows an architecture.
fn is_known(arch: &Arch, hip: (u32, u32)) -> bool {
    let new = arch.major >= 11 || (arch.major == 9 && arch.minor >= 4);
    !new || hip >= KNOWS_RDNA3
}

/// The compiler, if it can make code for an architecture.
pub(super) fn compiler_for(arch: &Arch) -> Result<&'static Rtc> {
    checked(arch).map(|opened| &opened.rtc)
}

fn checked(arch: &Arch) -> Result<&'static Opened> {
    let opened = compiler()?;
    // LOCAL_FIX(7): asked before it is called, for it would end the process.
    if !is_known(arch, opened.hip) {
        let (major, minor) = opened.hip;
        let reason = format!("the HIP compiler of version {major}.{minor} makes no code for {}", arch.base);
        return Err(unavailable(reason, "Install ROCm 6 or later, or take --device cpu"));
    }
    Ok(opened)
}

fn options(arch: &Arch) -> Vec<String> {
    vec![format!("--offload-arch={}", arch.target()), "-O3".to_owned(), "-std=c++17".to_owned()]
}

/// The compiler alone, without a GPU: to see that a text compiles.
#[derive(Clone, Copy, Debug)]
pub struct Compiler {
    rtc: &'static Rtc,
}

impl Compiler {
    /// Opens the library that `PORTOLAN_HIPRTC_LIBRARY` names, or the first that is found. No runtime is started.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] where there is none.
    pub fn open() -> Result<Self> {
        static OPENED: OnceLock<Result<Rtc>> = OnceLock::new();
        let search = || {
            let named = env::path("PORTOLAN_HIPRTC_LIBRARY");
            let runtime = env::path("PORTOLAN_HIP_LIBRARY");
            let of_major = |major| {
                let runtime = runtime.clone().unwrap_or_else(|| format!("libamdhip64.so.{major}").into());
                find(&runtime, major, named.as_deref())
            };
            of_major(7).or_else(|first| of_major(6).or_else(|_| of_major(5)).map_err(|_| first))
        };
        Ok(Compiler { rtc: OPENED.get_or_init(search).as_ref().map_err(Clone::clone)? })
    }

    /// Major and minor version, as hipRTC counts: HIP 5's says 9.0.
    pub fn version(&self) -> (i32, i32) {
        self.rtc.version
    }

    /// Compiles for an architecture, to a code object.
    ///
    /// An old compiler ends the process at an architecture that it does not know, so this is for a process that may end.
    ///
    /// # Errors
    /// The compiler's log.
    pub fn compile(&self, source: &KernelSource<'_>, arch: &Arch) -> Result<Vec<u8>, String> {
        self.rtc.compile(source, &options(arch))
    }
}

/// The compiled code of a kernel, from disk or from the compiler.
pub(super) fn compile(device: DeviceId, arch: &Arch, source: &KernelSource<'_>) -> Result<Vec<u8>> {
    let opened = checked(arch)?;
    let (rtc, options) = (&opened.rtc, options(arch));
    let key = kernel_cache::key(&opened.identity, &options, source);
    KernelCache::of(&arch.base).get_or_compile(&key, || {
        rtc.compile(source, &options).map_err(|log| DeviceError::Compile {
            device,
            kernel: source.to_string(),
            compiler: format!("hiprtc {}.{} for {}", rtc.version.0, rtc.version.1, arch.target()),
            log,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arch(name: &str) -> Arch {
        name.parse().expect("a name")
    }

    #[test]
    fn the_target_has_the_features() {
        let expected = ["--offload-arch=gfx942:sramecc+:xnack-", "-O3", "-std=c++17"];
        assert_eq!(options(&arch("gfx942:sramecc+:xnack-")), expected);
    }

    #[test]
    fn an_old_compiler_is_not_asked_for_what_it_aborts_at() {
        for (name, hip, known) in [
            ("gfx1030", (5, 2), true),
            ("gfx90a", (5, 2), true),
            ("gfx1100", (5, 2), false),
            ("gfx1151", (5, 4), false),
            ("gfx942", (5, 2), false),
            ("gfx1100", (5, 5), true),
            ("gfx1201", (6, 0), true),
            ("gfx942", (7, 1), true),
        ] {
            assert_eq!(is_known(&arch(name), hip), known, "{name} {hip:?}");
        }
    }

    #[test]
    fn a_missing_compiler_is_named() {
        let named = find(Path::new("libc.so.6"), 7, Some(Path::new("/nowhere/libhiprtc.so.7")));
        let said = named.expect_err("nothing there").to_string();
        assert!(said.contains("PORTOLAN_HIPRTC_LIBRARY=/nowhere/libhiprtc.so.7"), "{said}");
        let said = find(Path::new("libc.so.6"), 99, None).expect_err("no such version").to_string();
        assert!(said.contains("libhiprtc.so.99") && said.contains("Install"), "{said}");
    }
}
