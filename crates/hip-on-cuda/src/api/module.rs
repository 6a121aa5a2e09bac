//! Modules, and launches of their kernels. Attributes of a kernel have the same numbers in both.

use std::{
    collections::BTreeMap,
    ffi::{c_char, c_int, c_uint, c_void},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::forwarded;
use crate::{
    codes::SUCCESS,
    compile::{PTX_AT, PTX_MARK},
    driver::Driver,
};

/// Dynamic shared memory that CUDA gives a kernel without being asked, where AMD's GPUs give 64 KiB.
const PLAIN_SHARED: c_uint = 48 << 10;
/// The attribute that asks for more.
const MOST_DYNAMIC_SHARED: c_uint = 8;
/// What ends a list of `extra` in HIP; in CUDA it is a null pointer. The other marks are the same.
const HIP_EXTRA_END: usize = 3;
/// More than any list of `extra` has: two marks with their values, and the end.
const MOST_EXTRA: usize = 8;

/// Modules whose static shared memory was made dynamic, with its bytes, and their functions with their module, by handle.
#[derive(Default)]
struct Moved {
    modules: BTreeMap<usize, c_uint>,
    functions: BTreeMap<usize, usize>,
}

fn moved() -> MutexGuard<'static, Moved> {
    static MOVED: Mutex<Moved> = Mutex::new(Moved { modules: BTreeMap::new(), functions: BTreeMap::new() });
    MOVED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Moved {
    /// Bytes of dynamic shared memory that a launch of a function adds.
    fn bytes(&self, function: *mut c_void) -> c_uint {
        let module = self.functions.get(&(function as usize));
        module.and_then(|module| self.modules.get(module)).copied().unwrap_or(0)
    }

    fn forget(&mut self, module: *mut c_void) {
        self.modules.remove(&(module as usize));
        self.functions.retain(|_, of| *of != module as usize);
    }
}

/// The image that CUDA is given, and the bytes that launches of its kernels add.
///
/// # Safety
/// What `hiprtcGetCode` gave.
unsafe fn image_for_cuda(image: *const c_void) -> (*const c_void, c_uint) {
    // SAFETY: any code is longer (the caller's promise).
    let head = unsafe { image.cast::<[u8; PTX_AT]>().read_unaligned() };
    let Some(bytes) = head.strip_prefix(PTX_MARK).and_then(|bytes| <[u8; 8]>::try_from(bytes).ok()) else {
        return (image, 0);
    };
    // SAFETY: the PTX is behind its mark.
    (unsafe { image.byte_add(PTX_AT) }, u64::from_le_bytes(bytes) as c_uint)
}

/// `extra` as CUDA ends it.
///
/// # Safety
/// Null, or a list that ends as HIP's do.
unsafe fn extra_for_cuda(extra: *mut *mut c_void) -> [*mut c_void; MOST_EXTRA] {
    let mut list = [std::ptr::null_mut(); MOST_EXTRA];
    // Marks are at even places, and a value behind each but the end.
    for at in (0..MOST_EXTRA - 2).step_by(2).filter(|_| !extra.is_null()) {
        // SAFETY: the end has not come yet (the caller's promise).
        let mark = unsafe { *extra.add(at) };
        if mark as usize == HIP_EXTRA_END || mark.is_null() {
            break;
        }
        // SAFETY: a mark that is not the end has a value behind it.
        (list[at], list[at + 1]) = (mark, unsafe { *extra.add(at + 1) });
    }
    list
}

/// Lets a kernel have so much dynamic shared memory.
fn allow_shared(cu: &Driver, function: *mut c_void, bytes: c_uint) -> u32 {
    if bytes <= PLAIN_SHARED {
        return SUCCESS;
    }
    // SAFETY: the function is the caller's promise.
    unsafe {
        (cu.cuFuncSetAttribute)(function, MOST_DYNAMIC_SHARED, c_int::try_from(bytes).unwrap_or(c_int::MAX))
    }
}

forwarded! {
    /// Loads what `hiprtcGetCode` gave.
    fn hipModuleLoadData(module: *mut *mut c_void, image: *const c_void) |cu| {
        let (image, bytes) = image_for_cuda(image);
        let code = (cu.cuModuleLoadData)(module, image);
        if code == SUCCESS && bytes > 0 {
            moved().modules.insert(*module as usize, bytes);
        }
        code
    };

    /// Unloads it.
    fn hipModuleUnload(module: *mut c_void) |cu| {
        moved().forget(module);
        (cu.cuModuleUnload)(module)
    };

    /// A kernel of a module by its name.
    fn hipModuleGetFunction(function: *mut *mut c_void, module: *mut c_void, name: *const c_char) |cu| {
        let code = (cu.cuModuleGetFunction)(function, module, name);
        let mut moved = moved();
        if code == SUCCESS && moved.modules.contains_key(&(module as usize)) {
            moved.functions.insert(*function as usize, module as usize);
        }
        code
    };

    /// Sets an attribute of a kernel.
    fn hipFuncSetAttribute(function: *const c_void, attribute: c_uint, value: c_int)
        |cu| (cu.cuFuncSetAttribute)(function.cast_mut(), attribute, value);

    /// An attribute of a kernel.
    fn hipFuncGetAttribute(value: *mut c_int, attribute: c_uint, function: *mut c_void)
        |cu| (cu.cuFuncGetAttribute)(value, attribute, function);

    /// Launches a kernel: blocks, threads of a block, dynamic shared bytes, stream, arguments.
    fn hipModuleLaunchKernel(
        function: *mut c_void,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: *mut c_void,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) |cu| {
        let shared_bytes = shared_bytes + moved().bytes(function);
        let allowed = allow_shared(cu, function, shared_bytes);
        if allowed != SUCCESS {
            return allowed;
        }
        let mut list = extra_for_cuda(extra);
        let extra = if extra.is_null() { std::ptr::null_mut() } else { list.as_mut_ptr() };
        (cu.cuLaunchKernel)(
            function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, params, extra,
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_add_the_shared_memory_that_was_moved() {
        let mut code = PTX_MARK.to_vec();
        code.extend(50_000u64.to_le_bytes());
        code.extend(b".version 8.0\0");
        // SAFETY: as the compiler makes it.
        let (ptx, bytes) = unsafe { image_for_cuda(code.as_ptr().cast()) };
        assert_eq!((ptx, bytes), (code[PTX_AT..].as_ptr().cast(), 50_000));
        let cubin = [b"\x7fELF".as_slice(), &[0; 60]].concat();
        // SAFETY: longer than a mark.
        assert_eq!(unsafe { image_for_cuda(cubin.as_ptr().cast()) }, (cubin.as_ptr().cast(), 0));

        let (handle, mut moved) = (|n: usize| n as *mut c_void, Moved::default());
        moved.modules.insert(1, bytes);
        moved.functions.extend([(2, 1), (3, 4)]);
        assert_eq!([2, 3, 5].map(|n| moved.bytes(handle(n))), [50_000, 0, 0]);
        moved.forget(handle(1));
        assert_eq!(moved.bytes(handle(2)), 0);
    }

    #[test]
    fn a_list_of_extra_ends_as_cuda_wants_it() {
        let mark = |n: usize| n as *mut c_void;
        let mut of_hip = [mark(1), mark(0x1000), mark(2), mark(0x2000), mark(3)];
        // SAFETY: a list that ends.
        let of_cuda = unsafe { extra_for_cuda(of_hip.as_mut_ptr()) };
        assert_eq!(of_cuda[..5], [mark(1), mark(0x1000), mark(2), mark(0x2000), mark(0)]);
        // SAFETY: null is allowed.
        assert_eq!(unsafe { extra_for_cuda(std::ptr::null_mut()) }, [mark(0); MOST_EXTRA]);
    }
}
