//! hipRTC's work: HIP's options and text become CUDA's, and NVRTC makes a cubin of them.

use crate::{nvrtc::nvrtc, shared};

/// What gives a text HIP's and AMD's names under NVRTC.
const PRELUDE: &str = include_str!("../include/hip_on_cuda.h");
const PRELUDE_NAME: &str = "hip_on_cuda.h";

/// What code begins with that is no cubin: then a number of eight bytes, the dynamic shared memory that a launch adds, and
/// PTX with a zero behind it.
pub(crate) const PTX_MARK: &[u8; 8] = b"HIPONCU1";
/// Bytes before the PTX.
pub(crate) const PTX_AT: usize = 16;

/// Words of the assembler's where a kernel has more static shared memory than CUDA allows.
const TOO_MUCH_SHARED: &str = "uses too much shared data";

/// A program as hipRTC is given it.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// The file's name, for messages.
    pub name: String,
    /// The text.
    pub text: String,
    /// Names and texts of what it may include.
    pub headers: Vec<(String, String)>,
    /// What the compiler said.
    pub log: String,
    /// A cubin, or PTX behind a mark.
    pub code: Vec<u8>,
}

impl Program {
    /// Compiles for a compute capability (90). Whether there is code; the log tells the rest. No driver is needed.
    pub fn compile(&mut self, options: &[String], capability: i32) -> bool {
        let mut headers: Vec<(&str, &str)> =
            self.headers.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        headers.push((PRELUDE_NAME, PRELUDE));
        let name = if self.name.is_empty() { "program.hip" } else { &self.name };
        let text = format!("#include \"{PRELUDE_NAME}\"\n#line 1 \"{name}\"\n{}", self.text);
        let (ours, ignored) = cuda_options(options, &format!("sm_{capability}"));
        let compiled = nvrtc().and_then(|nvrtc| match nvrtc.compile(name, &text, &headers, &ours) {
            Err(log) if log.contains(TOO_MUCH_SHARED) => {
                let (ours, _) = cuda_options(options, &format!("compute_{capability}"));
                nvrtc.compile(name, &text, &headers, &ours).map(|ptx| with_dynamic_shared(&ptx))
            }
            compiled => compiled,
        });
        self.log = ignored.iter().map(|option| format!("the option {option} is not heeded\n")).collect();
        match compiled {
            Ok(code) => {
                self.code = code;
                true
            }
            Err(log) => {
                self.log.push_str(&log);
                false
            }
        }
    }
}

/// PTX whose static shared memory has become dynamic, behind a mark.
fn with_dynamic_shared(ptx: &[u8]) -> Vec<u8> {
    let (text, bytes) = shared::moved(String::from_utf8_lossy(ptx).trim_end_matches('\0'));
    let mut code = PTX_MARK.to_vec();
    code.extend((bytes as u64).to_le_bytes());
    code.extend(text.into_bytes());
    code.push(0);
    code
}

/// NVRTC's options for hipRTC's, and those that it is not given. Which AMD GPU is meant, and how much to optimise, is
/// left out in silence.
fn cuda_options(options: &[String], target: &str) -> (Vec<String>, Vec<String>) {
    let mut ours = vec![
        format!("--gpu-architecture={target}"),
        // As hipRTC, where a function without a mark is the device's.
        "-default-device".to_owned(),
        "-lineinfo".to_owned(),
    ];
    let mut ignored = Vec::new();
    for option in options {
        let option = option.trim();
        if let Some(standard) = option.strip_prefix("--std=").or_else(|| option.strip_prefix("-std=")) {
            ours.push(format!("--std={standard}"));
        } else if ["-D", "-U", "-I"].iter().any(|kept| option.starts_with(kept)) {
            ours.push(option.to_owned());
        } else if !["--offload-arch=", "--gpu-architecture=", "-O"]
            .iter()
            .any(|known| option.starts_with(known))
        {
            ignored.push(option.to_owned());
        }
    }
    (ours, ignored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_those_of_cuda() {
        let options =
            ["--offload-arch=gfx1100", "-O3", "-std=c++17", "-DLANES=32", "-mcumode"].map(str::to_owned);
        let (ours, ignored) = cuda_options(&options, "sm_90");
        assert_eq!(ours[0], "--gpu-architecture=sm_90");
        assert_eq!(ours[3..], ["--std=c++17", "-DLANES=32"]);
        assert_eq!(ignored, ["-mcumode"]);
    }
}
