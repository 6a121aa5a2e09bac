//! CUDA's runtime compiler, opened when it is first wanted.

use std::{
    ffi::{CString, c_char, c_int, c_void},
    path::Path,
    sync::OnceLock,
};

use libloading::Library;

type Program = *mut c_void;

macro_rules! functions {
    ($($name:ident($($kind:ty),* $(,)?);)*) => {
        /// The table of functions.
        #[allow(non_snake_case)]
        #[derive(Debug)]
        pub(crate) struct Nvrtc {
            $($name: unsafe extern "C" fn($($kind),*) -> c_int,)*
            /// Keeps the functions above where they are.
            _library: Library,
        }

        impl Nvrtc {
            fn open(path: &Path) -> Result<Self, String> {
                let words = |e: libloading::Error| format!("{}: {e}", path.display());
                // SAFETY: the compiler's library runs constructors of its own when it is opened, and nothing of ours.
                let library = unsafe { Library::new(path) }.map_err(words)?;
                Ok(Nvrtc {
                    $(
                        // SAFETY: the signature is the one of nvrtc.h.
                        $name: *unsafe { library.get(stringify!($name)) }.map_err(words)?,
                    )*
                    _library: library,
                })
            }
        }
    };
}

functions! {
    nvrtcVersion(*mut c_int, *mut c_int);
    nvrtcCreateProgram(
        *mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char,
    );
    nvrtcDestroyProgram(*mut Program);
    nvrtcCompileProgram(Program, c_int, *const *const c_char);
    nvrtcGetProgramLogSize(Program, *mut usize);
    nvrtcGetProgramLog(Program, *mut c_char);
    nvrtcGetCUBINSize(Program, *mut usize);
    nvrtcGetCUBIN(Program, *mut c_char);
    nvrtcGetPTXSize(Program, *mut usize);
    nvrtcGetPTX(Program, *mut c_char);
}

/// The compiler, opened once a process: what `PORTOLAN_NVRTC_LIBRARY` names, or the first that the system finds.
///
/// # Errors
/// In words, why there is none.
pub(crate) fn nvrtc() -> Result<&'static Nvrtc, String> {
    static NVRTC: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
    let open = || {
        if let Some(named) = std::env::var_os("PORTOLAN_NVRTC_LIBRARY").filter(|name| !name.is_empty()) {
            return Nvrtc::open(Path::new(&named));
        }
        let names = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so"];
        names.iter().find_map(|name| Nvrtc::open(Path::new(name)).ok()).ok_or_else(|| {
            "there is no libnvrtc.so.12 or .13: install it, or name it in PORTOLAN_NVRTC_LIBRARY".to_owned()
        })
    };
    NVRTC.get_or_init(open).as_ref().map_err(Clone::clone)
}

/// A program that is destroyed when it goes out of scope.
struct Guard<'a>(&'a Nvrtc, Program);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // SAFETY: made by this compiler, and destroyed once.
        unsafe { (self.0.nvrtcDestroyProgram)(&mut self.1) };
    }
}

impl Nvrtc {
    /// Major and minor version.
    pub(crate) fn version(&self) -> (c_int, c_int) {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two pointers to integers.
        unsafe { (self.nvrtcVersion)(&mut major, &mut minor) };
        (major, minor)
    }

    /// Compiles a text with headers (names and texts): to PTX for a virtual architecture (`compute_90`), else to a cubin.
    ///
    /// # Errors
    /// The log, or which call failed.
    pub(crate) fn compile(
        &self,
        name: &str,
        text: &str,
        headers: &[(&str, &str)],
        options: &[String],
    ) -> Result<Vec<u8>, String> {
        let c = |text: &str| CString::new(text).map_err(|_| "a zero byte in a text".to_owned());
        let all = |list: Vec<&str>| list.into_iter().map(c).collect::<Result<Vec<_>, _>>();
        let virtual_target = options.iter().any(|option| option.starts_with("--gpu-architecture=compute_"));
        let (name, text) = (c(name)?, c(text)?);
        let names = all(headers.iter().map(|header| header.0).collect())?;
        let texts = all(headers.iter().map(|header| header.1).collect())?;
        let options = all(options.iter().map(String::as_str).collect())?;
        let pointers = |list: &[CString]| list.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
        let (names, texts, options) = (pointers(&names), pointers(&texts), pointers(&options));
        let mut program = std::ptr::null_mut();
        let count = names.len() as c_int;
        // SAFETY: strings with zeros, and lists of `count` of them, which live longer than the program.
        let made = unsafe {
            (self.nvrtcCreateProgram)(
                &mut program,
                text.as_ptr(),
                name.as_ptr(),
                count,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        check("nvrtcCreateProgram", made)?;
        let guard = Guard(self, program);
        // SAFETY: a live program, and as many options as said.
        let compiled =
            unsafe { (self.nvrtcCompileProgram)(guard.1, options.len() as c_int, options.as_ptr()) };
        if compiled != 0 {
            let log = self.bytes(&guard, self.nvrtcGetProgramLogSize, self.nvrtcGetProgramLog)?;
            return Err(String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned());
        }
        if virtual_target {
            return self.bytes(&guard, self.nvrtcGetPTXSize, self.nvrtcGetPTX);
        }
        self.bytes(&guard, self.nvrtcGetCUBINSize, self.nvrtcGetCUBIN)
    }

    fn bytes(
        &self,
        program: &Guard<'_>,
        size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        bytes: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>, String> {
        let mut len = 0;
        // SAFETY: a live program.
        check("the size of a result", unsafe { size(program.1, &mut len) })?;
        let mut out = vec![0u8; len];
        // SAFETY: as many bytes as the compiler just asked for.
        check("a result", unsafe { bytes(program.1, out.as_mut_ptr().cast()) })?;
        Ok(out)
    }
}

fn check(what: &str, code: c_int) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("NVRTC: {what}: error {code}")) }
}
