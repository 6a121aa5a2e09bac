//! hipRTC's work: from a text to a shared object for the host, by the system's C++ compiler.

use std::{
    ffi::OsString,
    fs, io,
    path::{Component, Path, PathBuf},
    process::{Command, Output},
};

use crate::{
    rewrite::rewrite,
    settings::{self, Check},
};

/// The headers that device code is compiled with.
const HEADERS: [(&str, &str); 7] = [
    ("hip_emu_device.h", include_str!("../include/hip_emu_device.h")),
    ("hip_emu_math.h", include_str!("../include/hip_emu_math.h")),
    ("hip_emu_amdgcn.h", include_str!("../include/hip_emu_amdgcn.h")),
    ("hip_emu_matrix.h", include_str!("../include/hip_emu_matrix.h")),
    ("hip_emu_watch.h", include_str!("../include/hip_emu_watch.h")),
    // All that they declare is there from the start.
    ("hip/hip_runtime.h", "#pragma once\n"),
    ("hip/hip_runtime_api.h", "#pragma once\n"),
];

/// Compilers, the preferred one first.
const COMPILERS: [&str; 7] =
    ["clang++-22", "clang++-21", "clang++-20", "clang++-19", "clang++", "g++", "c++"];

/// What compiled code begins with: this mark, the fingerprint of the headers, the length of what follows.
const MARK: &[u8; 8] = b"HIPEMUv1";
const PREFIX: usize = 24;

/// A program as hipRTC is given it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) log: String,
    pub(crate) code: Vec<u8>,
}

/// What the hash FNV-1a begins with.
const FNV: u64 = 0xcbf2_9ce4_8422_2325;

const fn fnv(bytes: &[u8], mut hash: u64) -> u64 {
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0100_0000_01b3);
        i += 1;
    }
    hash
}

/// FNV-1a of the headers: code that was compiled with others does not fit.
pub(crate) const fn fingerprint() -> u64 {
    let mut hash = FNV;
    let mut i = 0;
    while i < HEADERS.len() {
        hash = fnv(HEADERS[i].1.as_bytes(), hash);
        i += 1;
    }
    hash
}

/// A number that changes with all that compiled code depends on besides text and options.
pub(crate) fn version() -> u32 {
    let settings = settings::get();
    let kind = u64::from(settings.check == Check::Full) << 2 | u64::from(settings.opt_level);
    let edit = settings.edit.map_or(0, |(old, new)| fnv(old.as_bytes(), fnv(new.as_bytes(), FNV)));
    (fingerprint().wrapping_add(kind).wrapping_add(edit) % 1_000_000) as u32
}

/// The shared object within compiled code.
///
/// # Errors
/// What is wrong with the code, in words.
///
/// # Safety
/// `code` points to what [`Program::compile`] made, or to a readable page's rest of eight bytes at the least.
pub(crate) unsafe fn unpack<'a>(code: *const u8) -> Result<&'a [u8], String> {
    // SAFETY: eight bytes (the caller's promise), then what the mark says is there.
    let bytes = |at: usize, len: usize| unsafe { std::slice::from_raw_parts(code.add(at), len) };
    if bytes(0, 8) != MARK {
        return Err("the image was not made by this emulator's hipRTC".to_owned());
    }
    let number = |at| u64::from_le_bytes(bytes(at, 8).try_into().unwrap_or_default());
    if number(8) != fingerprint() {
        return Err(
            "the image was made by another version of the emulator: empty the kernel cache".to_owned()
        );
    }
    Ok(bytes(PREFIX, number(16) as usize))
}

/// The first compiler that runs.
fn compiler() -> Option<PathBuf> {
    if let Some(named) = settings::get().compiler {
        return Some(named);
    }
    let path = std::env::var_os("PATH")?;
    let found = |name: &str| std::env::split_paths(&path).map(|f| f.join(name)).find(|p| p.is_file());
    COMPILERS.iter().find_map(|name| found(name))
}

/// Whether a C++ compiler is there, and which.
pub(crate) fn compiler_name() -> Option<String> {
    compiler().map(|path| path.display().to_string())
}

impl Program {
    /// Compiles. Whether there is code; the log tells the rest.
    pub(crate) fn compile(&mut self, options: &[String]) -> bool {
        self.log.clear();
        match self.build(options) {
            Ok(code) => {
                self.code = MARK.to_vec();
                self.code.extend(fingerprint().to_le_bytes());
                self.code.extend((code.len() as u64).to_le_bytes());
                self.code.extend(code);
                true
            }
            Err(error) => {
                self.log.push_str(&error);
                self.log.push('\n');
                false
            }
        }
    }

    fn build(&mut self, options: &[String]) -> Result<Vec<u8>, String> {
        let compiler = compiler().ok_or_else(|| {
            format!("no C++ compiler: install one of {}, or name one in HIP_EMU_CXX", COMPILERS.join(", "))
        })?;
        let folder = tempfile::tempdir().map_err(|e| format!("no folder for temporary files: {e}"))?;
        let folder = folder.path();
        for (name, text) in HEADERS {
            write(folder, name, text)?;
        }
        let edit = settings::get().edit;
        let edited = |text: &str| match &edit {
            Some((old, new)) => text.replacen(old, new, 1),
            None => text.to_owned(),
        };
        for (name, text) in &self.headers {
            write(folder, name, &edited(text))?;
        }
        let name = if self.name.is_empty() { "program.hip" } else { &self.name };
        let source = write(folder, name, &edited(&self.text))?;
        let (mut arguments, clang) = (Vec::<OsString>::new(), is_clang(&compiler));
        // Not as options: a name that is defined must not change the headers above.
        let defines = self.take_options(options, &mut arguments);
        write(folder, "hip_emu_defines.h", &defines)?;

        let mut preprocess = Command::new(&compiler);
        preprocess
            .current_dir(folder)
            .args(["-E", "-x", "c++", "-include", "hip_emu_device.h", "-include", "hip_emu_defines.h", "-I."])
            .args(&arguments);
        let watch = clang && settings::get().check == Check::Full;
        if watch {
            preprocess.arg("-DHIP_EMU_WATCH");
        }
        let output = run(preprocess.arg(&source))?;
        self.note(&output);
        if !output.status.success() {
            return Err("the preprocessor refuses the text".to_owned());
        }
        let (text, kernels) = rewrite(&String::from_utf8_lossy(&output.stdout), !clang);
        if kernels.is_empty() {
            self.log.push_str("no kernel: no function is __global__ that is not a template\n");
        }
        let unit = write(folder, "hip_emu_unit.ii", &text)?;

        let mut compile = Command::new(&compiler);
        compile.current_dir(folder).args(["-x", "c++-cpp-output"]).arg(&unit);
        compile.args(arguments.iter().filter(|a| a.to_string_lossy().starts_with("-std=")));
        compile.arg(format!("-O{}", settings::get().opt_level)).args(code_options(clang));
        if watch {
            compile.args(WATCH);
        }
        let output = run(compile.args(["-o", "hip_emu_module.so", "-lm"]))?;
        self.note(&output);
        if !output.status.success() {
            return Err("the compiler refuses the text".to_owned());
        }
        fs::read(folder.join("hip_emu_module.so")).map_err(|e| format!("no compiled module: {e}"))
    }

    /// The options that mean something on the host, and a text of what they define; the log names the others.
    fn take_options(&mut self, options: &[String], arguments: &mut Vec<OsString>) -> String {
        let mut defines = String::new();
        let mut standard = "-std=c++17".to_owned();
        for option in options {
            let option = option.trim();
            if let Some(arch) =
                option.strip_prefix("--offload-arch=").or_else(|| option.strip_prefix("--gpu-architecture="))
            {
                let base = arch.split(':').next().unwrap_or(arch);
                // gfx1151 is of the family GFX11.
                let digits = base.strip_prefix("gfx").unwrap_or("");
                let family = digits.get(..digits.len().saturating_sub(2)).unwrap_or("");
                defines.push_str(&format!("#define __{base}__ 1\n#define __GFX{family}__ 1\n"));
            } else if let Some(value) = option.strip_prefix("--std=").or_else(|| option.strip_prefix("-std="))
            {
                standard = format!("-std={value}");
            } else if let Some(define) = option.strip_prefix("-D") {
                let (name, value) = define.split_once('=').unwrap_or((define, "1"));
                defines.push_str(&format!("#define {name} {value}\n"));
            } else if let Some(name) = option.strip_prefix("-U") {
                defines.push_str(&format!("#undef {name}\n"));
            } else if option.starts_with("-I") && option.len() > 2 {
                arguments.push(option.into());
            } else if !["-O", "-m", "-f", "-W", "-w", "--"].iter().any(|known| option.starts_with(known)) {
                self.log.push_str(&format!("the option {option} is not heeded\n"));
            }
        }
        arguments.push(standard.into());
        defines
    }

    fn note(&mut self, output: &Output) {
        self.log.push_str(&String::from_utf8_lossy(&output.stderr));
    }
}

/// How device code is compiled. Errors that a GPU would pass over end in a trap, which the runner reports.
fn code_options(clang: bool) -> Vec<&'static str> {
    let mut options = vec![
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-fno-exceptions",
        "-fno-strict-aliasing",
        "-fno-math-errno",
        "-ffp-contract=fast",
        "-fno-stack-protector",
        // So that no frame steps over the page below its stack.
        "-fstack-clash-protection",
        "-Wl,-z,defs",
        "-Wno-psabi",
    ];
    if ["avx2", "fma", "f16c", "bmi2"].iter().all(|feature| has_feature(feature)) {
        options.push("-march=x86-64-v3");
    }
    if clang {
        options.extend([
            "-fsanitize=bounds,shift-exponent,integer-divide-by-zero,alignment,return,unreachable",
            "-fsanitize-trap=all",
            "-Wno-unknown-attributes",
            "-Wno-pass-failed",
            "-Wno-unused-value",
            "-Wno-extern-initializer",
            "-Wno-undefined-internal",
        ]);
    } else {
        options.extend([
            "-fsanitize=bounds,shift-exponent,integer-divide-by-zero,alignment,return,unreachable",
            "-fsanitize-undefined-trap-on-error",
            "-Wno-unknown-pragmas",
        ]);
    }
    options
}

/// clang tells of every access, by functions of the device header's.
const WATCH: [&str; 5] = [
    "-fsanitize=thread",
    "-mllvm",
    "-tsan-instrument-atomics=0",
    "-mllvm",
    "-tsan-instrument-func-entry-exit=0",
];

fn has_feature(feature: &str) -> bool {
    match feature {
        "avx2" => is_x86_feature_detected!("avx2"),
        "fma" => is_x86_feature_detected!("fma"),
        "f16c" => is_x86_feature_detected!("f16c"),
        _ => is_x86_feature_detected!("bmi2"),
    }
}

fn is_clang(compiler: &Path) -> bool {
    compiler.file_name().is_some_and(|name| name.to_string_lossy().contains("clang"))
}

/// Writes a file below a folder, and nowhere else.
fn write(folder: &Path, name: &str, text: &str) -> Result<PathBuf, String> {
    let relative: PathBuf =
        Path::new(name).components().filter(|c| matches!(c, Component::Normal(_))).collect();
    let path = folder.join(&relative);
    let parent = path.parent().unwrap_or(folder);
    fs::create_dir_all(parent)
        .and_then(|()| fs::write(&path, text))
        .map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(relative)
}

fn run(command: &mut Command) -> Result<Output, String> {
    command.output().map_err(|e: io::Error| format!("{}: {e}", command.get_program().to_string_lossy()))
}
