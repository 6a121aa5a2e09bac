use std::{path::PathBuf, sync::OnceLock};

use super::error::unavailable;
use crate::{
    DeviceCaps, DeviceError, KernelResources, KernelSource, Result, env,
    kernel_cache::{self, KernelCache},
    rtc::{NVRTC, Rtc, python_folders},
};

const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

const ADVICE: &str = "Install it (`pip install nvidia-cuda-nvrtc-cu12`, or your system's package), name it in \
                      PORTOLAN_NVRTC_LIBRARY, or take --device cpu";

/// The compiler, opened once a process.
pub(super) fn compiler() -> Result<&'static Rtc> {
    static OPENED: OnceLock<Result<Rtc>> = OnceLock::new();
    OPENED.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn open() -> Result<Rtc> {
    if let Some(path) = env::path("PORTOLAN_NVRTC_LIBRARY") {
        return Rtc::open(&path, &NVRTC)
            .map_err(|e| unavailable(format!("PORTOLAN_NVRTC_LIBRARY={}: {e}", path.display()), ADVICE));
    }
    for path in candidates() {
        match Rtc::open(&path, &NVRTC) {
            Ok(rtc) => {
                tracing::debug!("NVRTC {}.{} from {}", rtc.version.0, rtc.version.1, rtc.path.display());
                return Ok(rtc);
            }
            Err(error) => tracing::trace!("{}: {error}", path.display()),
        }
    }
    Err(unavailable("the CUDA compiler library (libnvrtc.so.12 or .13) is not there", ADVICE))
}

/// By name, as the system finds it, then in CUDA's own folders, then in those of Python packages.
fn candidates() -> Vec<PathBuf> {
    let mut candidates: Vec<PathBuf> = NAMES.map(PathBuf::from).into();
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let mut folders: Vec<PathBuf> = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(set).collect();
    folders.push(PathBuf::from("/usr/local/cuda"));
    let mut folders: Vec<PathBuf> =
        folders.iter().flat_map(|root| ["lib64", "lib"].map(|lib| root.join(lib))).collect();
    folders.extend(python_folders(&["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"]));
    candidates
        .extend(folders.iter().flat_map(|folder| NAMES.map(|name| folder.join(name))).filter(|p| p.exists()));
    candidates
}

/// The target of the compiler. Hopper's own instructions need the `a`.
fn target(caps: &DeviceCaps) -> String {
    if caps.has_feature("wgmma") { format!("{}a", caps.arch) } else { caps.arch.clone() }
}

fn options(target: &str) -> Vec<String> {
    vec![
        format!("--gpu-architecture={target}"),
        "--std=c++17".to_owned(),
        "-default-device".to_owned(),
        "-lineinfo".to_owned(),
    ]
}

/// The compiler alone, without a GPU or a driver: to see that a text compiles, and what it takes.
#[derive(Clone, Copy, Debug)]
pub struct Compiler {
    rtc: &'static Rtc,
}

impl Compiler {
    /// Opens the compiler's library.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] where there is none.
    pub fn open() -> Result<Self> {
        Ok(Compiler { rtc: compiler()? })
    }

    /// Major and minor version.
    pub fn version(&self) -> (i32, i32) {
        self.rtc.version
    }

    /// Compiles for a target (`sm_90a`), and says what the kernel takes.
    ///
    /// # Errors
    /// The compiler's log.
    pub fn compile(&self, source: &KernelSource<'_>, target: &str) -> Result<KernelResources, String> {
        let mut options = options(target);
        options.push("--ptxas-options=-v".to_owned());
        let (_, log) = self.rtc.compile_with_log(source, &options)?;
        Ok(resources(&log))
    }
}

/// The number before a word in a text.
fn number_before(text: &str, word: &str) -> Option<u32> {
    let at = text.find(word)?;
    text[..at].trim_end().rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// What the assembler says of the one kernel of a program: `Used 40 registers`, `16 bytes smem`, `8 bytes spill stores`.
fn resources(log: &str) -> KernelResources {
    let local = ["bytes stack frame", "bytes spill stores"].map(|word| number_before(log, word).unwrap_or(0));
    KernelResources {
        registers: number_before(log, " registers").unwrap_or(0),
        shared: number_before(log, " bytes smem").unwrap_or(0),
        local: local.into_iter().max().unwrap_or(0),
    }
}

/// The compiled code of a kernel, from disk or from the compiler.
pub(super) fn compile(caps: &DeviceCaps, source: &KernelSource<'_>) -> Result<Vec<u8>> {
    let rtc = compiler()?;
    let target = target(caps);
    let options = options(&target);
    let version = format!("nvrtc {}.{}", rtc.version.0, rtc.version.1);
    let key = kernel_cache::key(&version, &options, source);
    KernelCache::of(&target).get_or_compile(&key, || {
        rtc.compile(source, &options).map_err(|log| DeviceError::Compile {
            device: caps.id,
            kernel: source.to_string(),
            compiler: format!("{version} for {target}"),
            log,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kernel_takes_is_read_from_the_log() {
        let log = "ptxas info    : Compiling entry function 'k' for 'sm_90a'\nptxas info    : Function properties for k\n\
                   \x20   16 bytes stack frame, 12 bytes spill stores, 12 bytes spill loads\nptxas info    : Used 168 \
                   registers, used 1 barriers, 16 bytes cumulative stack size, 33280 bytes smem";
        assert_eq!(resources(log), KernelResources { registers: 168, shared: 33280, local: 16 });
        assert_eq!(resources(""), KernelResources::default());
    }
}
