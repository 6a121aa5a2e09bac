//! A runtime compiler: NVRTC or hipRTC, whose functions differ in their names alone.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    path::{Path, PathBuf},
};

use libloading::Library;

use crate::KernelSource;

/// The names of a compiler's functions.
#[derive(Debug)]
pub(crate) struct RtcNames {
    pub(crate) version: &'static str,
    pub(crate) create: &'static str,
    pub(crate) destroy: &'static str,
    pub(crate) compile: &'static str,
    pub(crate) log_size: &'static str,
    pub(crate) log: &'static str,
    pub(crate) code_size: &'static str,
    pub(crate) code: &'static str,
    pub(crate) error_string: &'static str,
}

/// NVRTC's.
pub(crate) const NVRTC: RtcNames = RtcNames {
    version: "nvrtcVersion",
    create: "nvrtcCreateProgram",
    destroy: "nvrtcDestroyProgram",
    compile: "nvrtcCompileProgram",
    log_size: "nvrtcGetProgramLogSize",
    log: "nvrtcGetProgramLog",
    code_size: "nvrtcGetCUBINSize",
    code: "nvrtcGetCUBIN",
    error_string: "nvrtcGetErrorString",
};

/// hipRTC's.
pub(crate) const HIPRTC: RtcNames = RtcNames {
    version: "hiprtcVersion",
    create: "hiprtcCreateProgram",
    destroy: "hiprtcDestroyProgram",
    compile: "hiprtcCompileProgram",
    log_size: "hiprtcGetProgramLogSize",
    log: "hiprtcGetProgramLog",
    code_size: "hiprtcGetCodeSize",
    code: "hiprtcGetCode",
    error_string: "hiprtcGetErrorString",
};

type Program = *mut c_void;
type VersionFn = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
type CreateFn = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type DestroyFn = unsafe extern "C" fn(*mut Program) -> c_int;
type CompileFn = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type SizeFn = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type BytesFn = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type ErrorFn = unsafe extern "C" fn(c_int) -> *const c_char;

/// An opened compiler.
#[derive(Debug)]
pub(crate) struct Rtc {
    create: CreateFn,
    destroy: DestroyFn,
    compile: CompileFn,
    log_size: SizeFn,
    log: BytesFn,
    code_size: SizeFn,
    code: BytesFn,
    error_string: ErrorFn,
    /// Major and minor version.
    pub(crate) version: (i32, i32),
    /// What was opened.
    pub(crate) path: PathBuf,
    /// Keeps the functions above where they are.
    _library: Library,
}

/// A program that is destroyed when it goes out of scope.
struct Guard<'a> {
    rtc: &'a Rtc,
    program: Program,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // SAFETY: the program was created by this compiler and is destroyed once.
        unsafe { (self.rtc.destroy)(&mut self.program) };
    }
}

impl Rtc {
    /// Opens a compiler's library.
    ///
    /// # Errors
    /// In words: that the file cannot be opened, or lacks a function.
    pub(crate) fn open(path: &Path, names: &RtcNames) -> Result<Self, String> {
        // SAFETY: a compiler's library runs constructors of its own when it is opened, and nothing of ours.
        let library = unsafe { Library::new(path) }.map_err(|e| library_words(&e))?;
        macro_rules! function {
            ($name:ident: $kind:ty) => {
                // SAFETY: the signature is the one of the library's public header, the same since its first version.
                *unsafe { library.get::<$kind>(names.$name) }
                    .map_err(|e| format!("it has no {}: {}", names.$name, library_words(&e)))?
            };
        }
        let version_of = function!(version: VersionFn);
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two pointers to integers.
        if unsafe { version_of(&mut major, &mut minor) } != 0 {
            return Err(format!("{} fails", names.version));
        }
        Ok(Rtc {
            create: function!(create: CreateFn),
            destroy: function!(destroy: DestroyFn),
            compile: function!(compile: CompileFn),
            log_size: function!(log_size: SizeFn),
            log: function!(log: BytesFn),
            code_size: function!(code_size: SizeFn),
            code: function!(code: BytesFn),
            error_string: function!(error_string: ErrorFn),
            version: (major, minor),
            path: path.to_owned(),
            _library: library,
        })
    }

    /// Compiles a text.
    ///
    /// # Errors
    /// The compiler's log.
    pub(crate) fn compile(&self, source: &KernelSource<'_>, options: &[String]) -> Result<Vec<u8>, String> {
        self.compile_with_log(source, options).map(|(code, _)| code)
    }

    /// As [`Rtc::compile`], with what the compiler said about what it made.
    pub(crate) fn compile_with_log(
        &self,
        source: &KernelSource<'_>,
        options: &[String],
    ) -> Result<(Vec<u8>, String), String> {
        let c = |text: &str| CString::new(text).map_err(|_| "a zero byte in the text".to_owned());
        let (text, file) = (c(source.text)?, c(source.file)?);
        let names = source.headers.iter().map(|(name, _)| c(name)).collect::<Result<Vec<_>, _>>()?;
        let texts = source.headers.iter().map(|(_, text)| c(text)).collect::<Result<Vec<_>, _>>()?;
        let pointers = |list: &[CString]| list.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
        let (names, texts) = (pointers(&names), pointers(&texts));
        let defines = source.defines.iter().map(|(name, value)| format!("-D{name}={value}"));
        let options = options.iter().cloned().chain(defines).map(|o| c(&o)).collect::<Result<Vec<_>, _>>()?;
        let options = pointers_of(&options);

        let mut program: Program = std::ptr::null_mut();
        let count = names.len() as c_int;
        // SAFETY: all strings live to the end of this function; the lists are `count` long.
        self.check(unsafe {
            (self.create)(&mut program, text.as_ptr(), file.as_ptr(), count, texts.as_ptr(), names.as_ptr())
        })?;
        let guard = Guard { rtc: self, program };
        // SAFETY: the program is live, and the options are as many as said.
        let status = unsafe { (self.compile)(guard.program, options.len() as c_int, options.as_ptr()) };
        let log = self.bytes(guard.program, self.log_size, self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned();
        if status != 0 {
            return Err(format!("{}: {log}", self.words(status)));
        }
        Ok((self.bytes(guard.program, self.code_size, self.code)?, log))
    }

    fn bytes(&self, program: Program, size: SizeFn, bytes: BytesFn) -> Result<Vec<u8>, String> {
        let mut len = 0;
        // SAFETY: the program is live.
        self.check(unsafe { size(program, &mut len) })?;
        let mut out = vec![0u8; len];
        // SAFETY: as many bytes as the library just asked for.
        self.check(unsafe { bytes(program, out.as_mut_ptr().cast()) })?;
        Ok(out)
    }

    fn words(&self, status: c_int) -> String {
        // SAFETY: takes any number.
        let text = unsafe { (self.error_string)(status) };
        if text.is_null() {
            return format!("error {status}");
        }
        // SAFETY: a static string of the library.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    fn check(&self, status: c_int) -> Result<(), String> {
        if status == 0 { Ok(()) } else { Err(self.words(status)) }
    }
}

/// What went wrong with a library, with the cause: which file or function.
pub(crate) fn library_words(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn pointers_of(list: &[CString]) -> Vec<*const c_char> {
    list.iter().map(|s| s.as_ptr()).collect()
}

/// Folders of Python environments that may hold a package's libraries: `subfolder` is below `site-packages`.
pub(crate) fn python_folders(subfolders: &[&str]) -> Vec<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let mut roots: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(set).collect();
    roots.extend(set("HOME").map(|home| home.join(".local")));
    // The environment of the `python3` that is found first.
    let on_path = set("PATH").and_then(|path| {
        std::env::split_paths(&path).map(|folder| folder.join("python3")).find(|python| python.exists())
    });
    roots.extend(on_path.iter().filter_map(|python| Some(python.parent()?.parent()?.to_owned())));
    roots.extend(["/usr/local", "/usr"].map(PathBuf::from));
    let mut found = Vec::new();
    for root in roots {
        for lib in ["lib", "lib64"] {
            let Ok(entries) = std::fs::read_dir(root.join(lib)) else { continue };
            let mut pythons: Vec<PathBuf> = entries
                .filter_map(|e| Some(e.ok()?.path()))
                .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("python3")))
                .collect();
            pythons.sort();
            for python in pythons.into_iter().rev() {
                for packages in ["site-packages", "dist-packages"] {
                    found.extend(subfolders.iter().map(|s| python.join(packages).join(s)));
                }
            }
        }
    }
    found.retain(|folder| folder.is_dir());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opening fails, and the words name each of `parts`.
    #[track_caller]
    fn check(path: &Path, parts: &[&str]) {
        match Rtc::open(path, &NVRTC) {
            Ok(rtc) => panic!("{} was taken for a compiler: {rtc:?}", path.display()),
            Err(words) => {
                assert!(parts.iter().all(|part| words.contains(part)), "{words:?} does not name {parts:?}");
            }
        }
    }

    #[test]
    fn what_is_no_compiler_is_said_in_words() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("libnvrtc.so.13");
        check(&missing, &["libnvrtc.so.13"]);
        check(folder.path(), &[&folder.path().display().to_string()]);
        std::fs::write(&missing, "no library").unwrap();
        check(&missing, &["libnvrtc.so.13"]);
        std::fs::write(&missing, "").unwrap();
        check(&missing, &["libnvrtc.so.13"]);
        // A library, and not this one.
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        check(Path::new("libc.so.6"), &["libc.so.6", "nvrtcVersion"]);
    }
}
