//! The emulator as a program has it: opened by dlopen, called through C signatures. Each test opens a copy of the
//! library, which has settings, memory and violations of its own.
#![allow(dead_code, non_snake_case, unreachable_pub, missing_docs, clippy::print_stdout)]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
};

use libloading::Library;

pub type Ptr = *mut c_void;

macro_rules! table {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $result:ty;)*) => {
        struct Table {
            $($name: unsafe extern "C" fn($($kind),*) -> $result,)*
        }

        impl Table {
            fn new(library: &Library) -> Self {
                // SAFETY: the signatures are those of HIP's public headers.
                unsafe { Table { $($name: *library.get(stringify!($name)).unwrap(),)* } }
            }
        }

        /// The library's functions, as methods. They trust their callers, which are tests, with pointers.
        #[allow(clippy::not_unsafe_ptr_arg_deref, clippy::too_many_arguments)]
        impl Hip {
            $(pub fn $name(&self, $($arg: $kind),*) -> $result {
                // SAFETY: tests pass what the functions want, or what they must refuse without harm.
                unsafe { (self.table.$name)($($arg),*) }
            })*
        }
    };
}

/// The emulator.
pub struct Hip {
    table: Table,
}

table! {
    hipInit(a0: c_uint) -> u32;
    hipGetDeviceCount(a0: *mut c_int) -> u32;
    hipDeviceGetName(a0: *mut c_char, a1: c_int, a2: c_int) -> u32;
    hipDeviceGetAttribute(a0: *mut c_int, a1: c_int, a2: c_int) -> u32;
    hipGetDevicePropertiesR0600(a0: Ptr, a1: c_int) -> u32;
    hipMemGetInfo(a0: *mut usize, a1: *mut usize) -> u32;
    hipMalloc(a0: *mut Ptr, a1: usize) -> u32;
    hipFree(a0: Ptr) -> u32;
    hipHostMalloc(a0: *mut Ptr, a1: usize, a2: c_uint) -> u32;
    hipHostFree(a0: Ptr) -> u32;
    hipMallocManaged(a0: *mut Ptr, a1: usize, a2: c_uint) -> u32;
    hipMemcpyAsync(a0: Ptr, a1: *const c_void, a2: usize, a3: c_uint, a4: Ptr) -> u32;
    hipMemcpy(a0: Ptr, a1: *const c_void, a2: usize, a3: c_uint) -> u32;
    hipMemsetD8Async(a0: Ptr, a1: u8, a2: usize, a3: Ptr) -> u32;
    hipPointerGetAttribute(a0: Ptr, a1: c_uint, a2: Ptr) -> u32;
    hipStreamCreateWithFlags(a0: *mut Ptr, a1: c_uint) -> u32;
    hipStreamDestroy(a0: Ptr) -> u32;
    hipStreamSynchronize(a0: Ptr) -> u32;
    hipStreamQuery(a0: Ptr) -> u32;
    hipStreamWaitEvent(a0: Ptr, a1: Ptr, a2: c_uint) -> u32;
    hipEventCreateWithFlags(a0: *mut Ptr, a1: c_uint) -> u32;
    hipEventDestroy(a0: Ptr) -> u32;
    hipEventRecord(a0: Ptr, a1: Ptr) -> u32;
    hipEventQuery(a0: Ptr) -> u32;
    hipEventSynchronize(a0: Ptr) -> u32;
    hipEventElapsedTime(a0: *mut f32, a1: Ptr, a2: Ptr) -> u32;
    hipDeviceSynchronize() -> u32;
    hipDeviceReset() -> u32;
    hipGetErrorName(a0: u32) -> *const c_char;
    hipModuleLoadData(a0: *mut Ptr, a1: *const c_void) -> u32;
    hipModuleUnload(a0: Ptr) -> u32;
    hipModuleGetFunction(a0: *mut Ptr, a1: Ptr, a2: *const c_char) -> u32;
    hipModuleLaunchKernel(a0: Ptr, a1: c_uint, a2: c_uint, a3: c_uint, a4: c_uint, a5: c_uint, a6: c_uint, a7: c_uint, a8: Ptr, a9: *mut Ptr, a10: *mut Ptr) -> u32;
    hipFuncGetAttribute(a0: *mut c_int, a1: c_uint, a2: Ptr) -> u32;
    hipStreamBeginCapture(a0: Ptr, a1: c_uint) -> u32;
    hipStreamEndCapture(a0: Ptr, a1: *mut Ptr) -> u32;
    hipGraphInstantiateWithFlags(a0: *mut Ptr, a1: Ptr, a2: u64) -> u32;
    hipGraphLaunch(a0: Ptr, a1: Ptr) -> u32;
    hipGraphDestroy(a0: Ptr) -> u32;
    hipGraphExecDestroy(a0: Ptr) -> u32;
    hiprtcVersion(a0: *mut c_int, a1: *mut c_int) -> u32;
    hiprtcCreateProgram(a0: *mut Ptr, a1: *const c_char, a2: *const c_char, a3: c_int, a4: *const *const c_char, a5: *const *const c_char) -> u32;
    hiprtcCompileProgram(a0: Ptr, a1: c_int, a2: *const *const c_char) -> u32;
    hiprtcGetProgramLogSize(a0: Ptr, a1: *mut usize) -> u32;
    hiprtcGetProgramLog(a0: Ptr, a1: *mut c_char) -> u32;
    hiprtcGetCodeSize(a0: Ptr, a1: *mut usize) -> u32;
    hiprtcGetCode(a0: Ptr, a1: *mut c_char) -> u32;
    hiprtcDestroyProgram(a0: *mut Ptr) -> u32;
    hiprtcGetErrorString(a0: u32) -> *const c_char;
    hip_emu_set(a0: *const c_char, a1: *const c_char) -> u32;
    hip_emu_violations() -> usize;
    hip_emu_take_violations(a0: *mut c_char, a1: usize) -> usize;
    hip_emu_live() -> usize;
    hip_emu_leaks(a0: *mut c_char, a1: usize) -> usize;
    hip_emu_calls(a0: *mut c_char, a1: usize) -> usize;
    hip_emu_compiler(a0: *mut c_char, a1: usize) -> usize;
}

/// The library that cargo built beside this test.
fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    [folder, folder.parent().unwrap()]
        .map(|f| f.join("libamdhip64_emu.so"))
        .into_iter()
        .find(|p| p.exists())
        .unwrap()
}

/// A copy of the library of its own for every caller. It stays open: its threads run in it.
pub fn open(settings: &[(&str, &str)]) -> Hip {
    static COPIES: AtomicUsize = AtomicUsize::new(0);
    let copy = std::env::temp_dir().join(format!(
        "hip-emu-{}-{}.so",
        std::process::id(),
        COPIES.fetch_add(1, Ordering::AcqRel)
    ));
    std::fs::copy(built(), &copy).unwrap();
    // SAFETY: the emulator, which runs nothing when it is opened.
    let library = unsafe { Library::new(&copy) }.unwrap();
    std::fs::remove_file(&copy).unwrap();
    let hip = Hip { table: Table::new(&library) };
    std::mem::forget(library);
    for (name, value) in settings {
        hip.set(name, value);
    }
    hip.ok(hip.hipInit(0));
    hip
}

/// The same, or none where there is no C++ compiler, which is said.
pub fn open_with_compiler(settings: &[(&str, &str)]) -> Option<Hip> {
    let hip = open(settings);
    if hip.text(Hip::hip_emu_compiler).is_empty() {
        println!("SKIPPED: there is no C++ compiler (clang++ or g++) to compile kernels with");
        return None;
    }
    Some(hip)
}

/// The same, or none where the compiler is not clang, which is said with what needs it.
pub fn open_with_clang(settings: &[(&str, &str)], what: &str) -> Option<Hip> {
    let hip = open_with_compiler(settings)?;
    let clang = hip.text(Hip::hip_emu_compiler).contains("clang");
    if !clang {
        println!("SKIPPED: {what} need clang++");
    }
    clang.then_some(hip)
}

/// What is compiled with a kernel's text.
#[derive(Default)]
pub struct Source<'a> {
    pub text: &'a str,
    pub headers: &'a [(&'a str, &'a str)],
    pub options: &'a [&'a str],
}

impl Hip {
    #[track_caller]
    pub fn ok(&self, code: u32) {
        if code != 0 {
            // SAFETY: a static string.
            let name = unsafe { CStr::from_ptr(self.hipGetErrorName(code)) }.to_string_lossy().into_owned();
            panic!("{name} ({code}): {}", self.violations());
        }
    }

    pub fn set(&self, name: &str, value: &str) {
        let (name, value) = (CString::new(name).unwrap(), CString::new(value).unwrap());
        assert_eq!(self.hip_emu_set(name.as_ptr(), value.as_ptr()), 0);
    }

    /// A text that a function of the emulator writes.
    pub fn text(&self, function: impl Fn(&Hip, *mut c_char, usize) -> usize) -> String {
        let mut bytes = vec![0u8; 1 << 16];
        function(self, bytes.as_mut_ptr().cast(), bytes.len());
        CStr::from_bytes_until_nul(&bytes).unwrap().to_string_lossy().into_owned()
    }

    /// The violations so far, which are forgotten.
    pub fn violations(&self) -> String {
        self.text(Hip::hip_emu_take_violations)
    }

    /// Compiled code, or the log.
    pub fn compile(&self, source: &Source<'_>) -> Result<Vec<u8>, String> {
        let c = |text: &str| CString::new(text).unwrap();
        let (text, name) = (c(source.text), c("test.hip"));
        let names: Vec<CString> = source.headers.iter().map(|h| c(h.0)).collect();
        let texts: Vec<CString> = source.headers.iter().map(|h| c(h.1)).collect();
        let options: Vec<CString> = source.options.iter().map(|o| c(o)).collect();
        let pointers = |list: &[CString]| list.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
        let (names, texts, options) = (pointers(&names), pointers(&texts), pointers(&options));
        let mut program = std::ptr::null_mut();
        let count = names.len() as c_int;
        {
            let created = self.hiprtcCreateProgram(
                &mut program,
                text.as_ptr(),
                name.as_ptr(),
                count,
                texts.as_ptr(),
                names.as_ptr(),
            );
            assert_eq!(created, 0);
            let status = self.hiprtcCompileProgram(program, options.len() as c_int, options.as_ptr());
            let mut len = 0;
            self.hiprtcGetProgramLogSize(program, &mut len);
            let mut log = vec![0u8; len];
            self.hiprtcGetProgramLog(program, log.as_mut_ptr().cast());
            let mut code = Vec::new();
            if status == 0 {
                self.hiprtcGetCodeSize(program, &mut len);
                code.resize(len, 0u8);
                self.hiprtcGetCode(program, code.as_mut_ptr().cast());
            }
            assert_eq!(self.hiprtcDestroyProgram(&mut program), 0);
            log.pop();
            if status == 0 { Ok(code) } else { Err(String::from_utf8_lossy(&log).into_owned()) }
        }
    }

    /// A loaded module.
    #[track_caller]
    pub fn module(&self, source: &Source<'_>) -> Ptr {
        let code = self.compile(source).unwrap_or_else(|log| panic!("{log}"));
        let mut module = std::ptr::null_mut();
        self.ok(self.hipModuleLoadData(&mut module, code.as_ptr().cast()));
        module
    }

    #[track_caller]
    pub fn function(&self, module: Ptr, name: &str) -> Ptr {
        let (mut function, name) = (std::ptr::null_mut(), CString::new(name).unwrap());
        self.ok(self.hipModuleGetFunction(&mut function, module, name.as_ptr()));
        function
    }

    pub fn launch(
        &self,
        function: Ptr,
        grid: u32,
        block: u32,
        shared: u32,
        stream: Ptr,
        args: &[Ptr],
    ) -> u32 {
        let mut args = args.to_vec();
        let none = std::ptr::null_mut();
        {
            self.hipModuleLaunchKernel(
                function,
                grid,
                1,
                1,
                block,
                1,
                1,
                shared,
                stream,
                args.as_mut_ptr(),
                none,
            )
        }
    }

    /// One block, with the arguments in one buffer of `size` bytes.
    pub fn launch_packed<T>(&self, function: Ptr, block: u32, shared: u32, args: &T, size: usize) -> u32 {
        let mut extra = [1 as Ptr, arg(args), 2 as Ptr, arg(&size), 3 as Ptr];
        let none = std::ptr::null_mut();
        self.hipModuleLaunchKernel(
            function,
            1,
            1,
            1,
            block,
            1,
            1,
            shared,
            none,
            none.cast(),
            extra.as_mut_ptr(),
        )
    }

    #[track_caller]
    pub fn malloc(&self, len: usize) -> Ptr {
        let mut pointer = std::ptr::null_mut();
        self.ok(self.hipMalloc(&mut pointer, len));
        pointer
    }

    #[track_caller]
    pub fn pinned(&self, len: usize) -> Ptr {
        let mut pointer = std::ptr::null_mut();
        self.ok(self.hipHostMalloc(&mut pointer, len, 1));
        pointer
    }

    #[track_caller]
    pub fn upload<T: Copy>(&self, values: &[T]) -> Ptr {
        let pointer = self.malloc(size_of_val(values));
        self.ok(self.hipMemcpy(pointer, values.as_ptr().cast(), size_of_val(values), 1));
        pointer
    }

    #[track_caller]
    pub fn download<T: Copy + Default>(&self, pointer: Ptr, count: usize) -> Vec<T> {
        let mut values = vec![T::default(); count];
        self.ok(self.hipMemcpy(values.as_mut_ptr().cast(), pointer, count * size_of::<T>(), 2));
        values
    }

    #[track_caller]
    pub fn stream(&self) -> Ptr {
        let mut stream = std::ptr::null_mut();
        self.ok(self.hipStreamCreateWithFlags(&mut stream, 1));
        stream
    }

    #[track_caller]
    pub fn event(&self) -> Ptr {
        let mut event = std::ptr::null_mut();
        self.ok(self.hipEventCreateWithFlags(&mut event, 2));
        event
    }
}

/// A pointer to an argument.
pub fn arg<T>(value: &T) -> Ptr {
    (&raw const *value).cast_mut().cast()
}
