//! The table of HIP's functions against a declaration that others made: the crate hip-runtime-sys, which is generated
//! from the headers of HIP 5.4. Types are compared, so neither a runtime nor a GPU is needed, and nothing is linked.
//!
//! The known differences are items of LOCAL_FIXES.md, and each is looked at here: one that has gone fails the test.
#![allow(clippy::unwrap_used, clippy::expect_used, non_camel_case_types)]

use std::ffi::c_void;

use hip_runtime_sys as hip;
use portolan_device::rocm::{
    error_name,
    sys::{self, Hip},
};

/// A type's name in C, the same for both declarations.
trait Named {
    fn name() -> String;
}

macro_rules! named {
    ($($kind:ty => $name:expr),* $(,)?) => {$(
        impl Named for $kind {
            fn name() -> String {
                $name.to_owned()
            }
        }
    )*};
}

/// Types that both declare under one name.
macro_rules! shared {
    ($($kind:ident),* $(,)?) => {
        named!($(sys::$kind => stringify!($kind), hip::$kind => stringify!($kind)),*);
    };
}

named!(i8 => "i8", u8 => "u8", i32 => "i32", u32 => "u32", usize => "usize", c_void => "void");
named!(hip::hipDeviceProp_t => "void");
shared!(
    hipError_t,
    hipMemcpyKind,
    hipDeviceAttribute_t,
    hipFunction_attribute,
    hipFuncAttribute,
    hipStreamCaptureMode,
    ihipStream_t,
    ihipEvent_t,
    ihipModule_t,
    ihipModuleSymbol_t,
    ihipGraph,
    hipGraphNode,
    hipGraphExec,
);

impl<T: Named> Named for *mut T {
    fn name() -> String {
        format!("*mut {}", T::name())
    }
}

impl<T: Named> Named for *const T {
    fn name() -> String {
        format!("*const {}", T::name())
    }
}

macro_rules! functions {
    ($($($kind:ident)*;)*) => {$(
        impl<$($kind: Named,)* R: Named> Named for unsafe extern "C" fn($($kind),*) -> R {
            fn name() -> String {
                let of: &[String] = &[$($kind::name()),*];
                format!("fn({}) -> {}", of.join(", "), R::name())
            }
        }
    )*};
}

functions! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F G H I J K;
}

fn ours<F: Named>(_: impl Fn(&Hip) -> F) -> String {
    F::name()
}

fn ours_optional<F: Named>(_: impl Fn(&Hip) -> Option<F>) -> String {
    F::name()
}

/// The closure is type-checked and never called, so that the function's symbol is never asked of a linker.
fn theirs<F: Named>(_: impl Fn() -> F) -> String {
    F::name()
}

/// Rows of a function's name, our signature and theirs.
macro_rules! rows {
    ($ours:ident: $($name:ident($($arg:ty),*))*) => {
        vec![$((
            stringify!($name),
            $ours(|table: &Hip| table.$name),
            theirs(|| hip::$name as unsafe extern "C" fn($($arg),*) -> _),
        )),*]
    };
}

fn required() -> Vec<(&'static str, String, String)> {
    rows! { ours:
        hipInit(_)
        hipRuntimeGetVersion(_)
        hipGetDeviceCount(_)
        hipSetDevice(_)
        hipDeviceGetName(_, _, _)
        hipDeviceGetAttribute(_, _, _)
        hipMemGetInfo(_, _)
        hipMalloc(_, _)
        hipFree(_)
        hipHostMalloc(_, _, _)
        hipHostFree(_)
        hipMemcpyAsync(_, _, _, _, _)
        hipMemsetAsync(_, _, _, _)
        hipStreamCreateWithFlags(_, _)
        hipStreamDestroy(_)
        hipStreamSynchronize(_)
        hipStreamWaitEvent(_, _, _)
        hipEventCreateWithFlags(_, _)
        hipEventDestroy(_)
        hipEventRecord(_, _)
        hipEventQuery(_)
        hipEventSynchronize(_)
        hipModuleLoadData(_, _)
        hipModuleUnload(_)
        hipModuleGetFunction(_, _, _)
        hipModuleLaunchKernel(_, _, _, _, _, _, _, _, _, _, _)
    }
}

fn optional() -> Vec<(&'static str, String, String)> {
    rows! { ours_optional:
        hipGetDeviceProperties(_, _)
        hipDeviceGetPCIBusId(_, _, _)
        hipMallocManaged(_, _, _)
        hipFuncSetAttribute(_, _, _)
        hipFuncGetAttribute(_, _, _)
        hipStreamBeginCapture(_, _)
        hipStreamEndCapture(_, _)
        hipGraphInstantiate(_, _, _, _, _)
        hipGraphLaunch(_, _)
        hipGraphDestroy(_)
        hipGraphExecDestroy(_)
    }
}

#[test]
fn every_signature_is_the_same() {
    for (name, ours, theirs) in required().into_iter().chain(optional()) {
        assert_eq!(ours, theirs, "{name}");
        assert!(ours.ends_with("-> hipError_t"), "{name}: {ours}");
    }
}

#[test]
fn every_function_of_the_table_is_compared() {
    let names = |rows: Vec<(&'static str, String, String)>| rows.iter().map(|r| r.0).collect::<Vec<_>>();
    assert_eq!(names(required()), Hip::REQUIRED);
    // Since HIP 6, so not in the declaration: its signature is that of the function without a version.
    let mut found = names(optional());
    found.insert(0, "hipGetDevicePropertiesR0600");
    assert_eq!(found, Hip::OPTIONAL);
    let with_version = ours_optional(|table: &Hip| table.hipGetDevicePropertiesR0600);
    assert_eq!(with_version, ours_optional(|table: &Hip| table.hipGetDeviceProperties));
}

/// A code, an enum's value or a flag of ours, and the same of theirs.
macro_rules! values {
    ($($kind:ident { $($value:ident)* })*) => {
        $($(assert_eq!(sys::$kind::$value.0, hip::$kind::$value as u32, stringify!($value));)*)*
        $(assert_eq!(size_of::<sys::$kind>(), size_of::<hip::$kind>(), stringify!($kind));)*
    };
}

macro_rules! flags {
    ($($name:ident)*) => {
        $(assert_eq!(sys::$name, hip::$name, stringify!($name));)*
    };
}

#[test]
fn every_constant_is_the_same() {
    values! {
        hipError_t {
            hipSuccess hipErrorOutOfMemory hipErrorNoDevice hipErrorInvalidDevice hipErrorNotReady hipErrorNotSupported
        }
        hipMemcpyKind { hipMemcpyDefault }
        hipDeviceAttribute_t {
            hipDeviceAttributeIntegrated hipDeviceAttributeManagedMemory hipDeviceAttributeMultiprocessorCount
            hipDeviceAttributeWarpSize
        }
        hipFunction_attribute {
            HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES HIP_FUNC_ATTRIBUTE_NUM_REGS
        }
        hipFuncAttribute { hipFuncAttributeMaxDynamicSharedMemorySize }
        hipStreamCaptureMode { hipStreamCaptureModeThreadLocal }
    }
    flags! {
        hipStreamNonBlocking hipEventDisableTiming hipHostMallocPortable hipHostMallocMapped hipMemAttachGlobal
    }
}

/// Codes of theirs with their names.
macro_rules! codes {
    ($($name:ident)*) => {
        [$((hip::hipError_t::$name as u32, stringify!($name))),*]
    };
}

#[test]
fn every_code_has_the_name_of_the_header() {
    let codes = codes! {
        hipSuccess hipErrorInvalidValue hipErrorOutOfMemory hipErrorNotInitialized hipErrorDeinitialized
        hipErrorProfilerDisabled hipErrorProfilerNotInitialized hipErrorProfilerAlreadyStarted
        hipErrorProfilerAlreadyStopped hipErrorInvalidConfiguration hipErrorInvalidPitchValue hipErrorInvalidSymbol
        hipErrorInvalidDevicePointer hipErrorInvalidMemcpyDirection hipErrorInsufficientDriver
        hipErrorMissingConfiguration hipErrorPriorLaunchFailure hipErrorInvalidDeviceFunction hipErrorNoDevice
        hipErrorInvalidDevice hipErrorInvalidImage hipErrorInvalidContext hipErrorContextAlreadyCurrent
        hipErrorMapFailed hipErrorUnmapFailed hipErrorArrayIsMapped hipErrorAlreadyMapped hipErrorNoBinaryForGpu
        hipErrorAlreadyAcquired hipErrorNotMapped hipErrorNotMappedAsArray hipErrorNotMappedAsPointer
        hipErrorECCNotCorrectable hipErrorUnsupportedLimit hipErrorContextAlreadyInUse
        hipErrorPeerAccessUnsupported hipErrorInvalidKernelFile hipErrorInvalidGraphicsContext
        hipErrorInvalidSource hipErrorFileNotFound hipErrorSharedObjectSymbolNotFound
        hipErrorSharedObjectInitFailed hipErrorOperatingSystem hipErrorInvalidHandle hipErrorIllegalState
        hipErrorNotFound hipErrorNotReady hipErrorIllegalAddress hipErrorLaunchOutOfResources
        hipErrorLaunchTimeOut hipErrorPeerAccessAlreadyEnabled hipErrorPeerAccessNotEnabled
        hipErrorSetOnActiveProcess hipErrorContextIsDestroyed hipErrorAssert hipErrorHostMemoryAlreadyRegistered
        hipErrorHostMemoryNotRegistered hipErrorLaunchFailure hipErrorCooperativeLaunchTooLarge
        hipErrorNotSupported hipErrorStreamCaptureUnsupported hipErrorStreamCaptureInvalidated
        hipErrorStreamCaptureMerge hipErrorStreamCaptureUnmatched hipErrorStreamCaptureUnjoined
        hipErrorStreamCaptureIsolation hipErrorStreamCaptureImplicit hipErrorCapturedEvent
        hipErrorStreamCaptureWrongThread hipErrorGraphExecUpdateFailure hipErrorUnknown hipErrorRuntimeMemory
        hipErrorRuntimeOther hipErrorTbd
    };
    for (code, name) in codes {
        assert_eq!(error_name(code), Some(name), "{code}");
    }
    // LOCAL_FIX(6): our table knows codes that their closed enum lacks, and ours may be any number.
    let theirs = |code: u32| codes.iter().any(|row| row.0 == code);
    for code in [911, 912] {
        assert!(error_name(code).is_some() && !theirs(code), "{code}");
    }
    let named = (0..10_000).filter(|code| error_name(*code).is_some()).count();
    assert_eq!(named, codes.len() + 2);
    let unknown = sys::hipError_t(4711);
    assert_eq!((unknown.0, error_name(unknown.0)), (4711, None));
}

#[test]
fn the_struct_of_properties_is_the_old_one() {
    // LOCAL_FIX(5): theirs is what the function without a version fills in: 792 bytes, with the name of the architecture
    // at 396. HIP 6's has 1472 bytes and the name at 1160.
    assert_eq!(size_of::<hip::hipDeviceProp_t>(), 792);
    assert_eq!(std::mem::offset_of!(hip::hipDeviceProp_t, gcnArchName), 396);
}
