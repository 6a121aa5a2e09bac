//! Compiled modules: opened, their kernels found and launched.

use std::{
    ffi::{CStr, CString, c_void},
    io::Write,
    os::unix::ffi::OsStrExt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::{
    codes::{Code, INVALID_IMAGE, NO_BINARY_FOR_GPU, SHARED_OBJECT_INIT_FAILED},
    compile,
    device_abi::{ABI, KernelTable, ModuleTable},
    report,
};

/// An opened module.
#[derive(Debug)]
pub(crate) struct Module {
    /// Handles of its functions, which end with it.
    pub(crate) functions: Mutex<Vec<usize>>,
    handle: *mut c_void,
    table: *const ModuleTable,
    /// Its shared memory and its context serve one launch at a time; holds the bytes of dynamic memory below the page
    /// that faults.
    pub(crate) turn: Mutex<Option<usize>>,
}

// SAFETY: the tables are constants of the opened object; what they point to is used by the holder of `turn` alone.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Opens compiled code.
    ///
    /// # Safety
    /// As of [`compile::unpack`].
    pub(crate) unsafe fn open(code: *const u8) -> Result<Self, Code> {
        let refused = |code, text: &str| {
            report::say(&format!("hipModuleLoadData: {text}"));
            Err(code)
        };
        // SAFETY: the caller's promise.
        let object = match unsafe { compile::unpack(code) } {
            Ok(object) => object,
            Err(text) => return refused(NO_BINARY_FOR_GPU, &text),
        };
        // The loader takes two files of one name for one, so that every module has a name of its own.
        let path = match tempfile::Builder::new().prefix(&unique_name()).suffix(".so").tempfile() {
            Ok(mut file) => file.write_all(object).map(|()| file.into_temp_path()),
            Err(error) => Err(error),
        };
        let path = match path {
            Ok(path) => path,
            Err(error) => return refused(SHARED_OBJECT_INIT_FAILED, &format!("no temporary file: {error}")),
        };
        let Ok(name) = CString::new(path.as_os_str().as_bytes()) else { return Err(INVALID_IMAGE) };
        // SAFETY: an object that our compiler made, whose constructors are plain data.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: a string of the loader, until its next call on this thread.
            let text = unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned();
            return refused(INVALID_IMAGE, &text);
        }
        // SAFETY: an open handle and a name.
        let table = unsafe { libc::dlsym(handle, c"hip_emu_module".as_ptr()) }.cast::<ModuleTable>();
        let module = Module { handle, table, turn: Mutex::new(None), functions: Mutex::default() };
        // SAFETY: where there is one, it is the header's struct.
        if table.is_null() || unsafe { (*table).abi } != ABI {
            return refused(INVALID_IMAGE, "the image is for another emulator");
        }
        Ok(module)
    }

    pub(crate) fn table(&self) -> &ModuleTable {
        // SAFETY: a constant of the object, which is open as long as `self`.
        unsafe { &*self.table }
    }

    /// A kernel by its name.
    pub(crate) fn kernel(&self, name: &CStr) -> Option<*const KernelTable> {
        let symbol = CString::new([b"hip_emu_kernel_", name.to_bytes()].concat()).ok()?;
        // SAFETY: an open handle and a name.
        let table = unsafe { libc::dlsym(self.handle, symbol.as_ptr()) }.cast::<KernelTable>();
        (!table.is_null()).then_some(table)
    }

    /// Bytes of static shared memory.
    pub(crate) fn shared_bytes(&self) -> usize {
        let table = self.table();
        (table.shared_end as usize).saturating_sub(table.shared as usize)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once; launches hold the module as long as they run.
        unsafe { libc::dlclose(self.handle) };
    }
}

/// A part of a file's name that no other module of the process has, of another copy of this library neither.
fn unique_name() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("hip-emu-{:p}-{}-", &raw const COUNT, COUNT.fetch_add(1, Ordering::AcqRel))
}

/// A kernel of an open module.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) module: Arc<Module>,
    pub(crate) name: String,
    table: *const KernelTable,
}

// SAFETY: a constant of the module, which is held.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    pub(crate) fn new(module: Arc<Module>, name: &CStr) -> Option<Self> {
        let table = module.kernel(name)?;
        Some(Function { module, name: name.to_string_lossy().into_owned(), table })
    }

    pub(crate) fn table(&self) -> &KernelTable {
        // SAFETY: a constant of the module, which is held.
        unsafe { &*self.table }
    }

    /// Offsets and sizes of the parameters in a packed list, and its length.
    pub(crate) fn layout(&self) -> (Vec<(usize, usize)>, usize) {
        let table = self.table();
        let (mut places, mut end) = (Vec::new(), 0usize);
        for i in 0..table.params as usize {
            // SAFETY: as many as there are parameters.
            let (size, align) = unsafe { (*table.sizes.add(i) as usize, *table.aligns.add(i) as usize) };
            let at = end.next_multiple_of(align.max(1));
            places.push((at, size));
            end = at + size;
        }
        (places, end)
    }
}
