//! Error codes of HIP 7, with their names. They are numbers here, never a closed enum: a program may know fewer.

use std::ffi::CStr;

/// A result of a call.
pub(crate) type Code = u32;

macro_rules! codes {
    ($($constant:ident = $value:literal $name:literal $text:literal),* $(,)?) => {
        $(#[allow(dead_code)] pub(crate) const $constant: Code = $value;)*
        const NAMED: &[(Code, &CStr, &CStr)] = &[$(($value, $name, $text)),*];
    };
}

codes! {
    SUCCESS = 0 c"hipSuccess" c"no error",
    INVALID_VALUE = 1 c"hipErrorInvalidValue" c"invalid argument",
    OUT_OF_MEMORY = 2 c"hipErrorOutOfMemory" c"out of memory",
    NOT_INITIALIZED = 3 c"hipErrorNotInitialized" c"initialization error",
    INVALID_CONFIGURATION = 9 c"hipErrorInvalidConfiguration" c"invalid configuration argument",
    INVALID_DEVICE_POINTER = 17 c"hipErrorInvalidDevicePointer" c"invalid device pointer",
    INVALID_MEMCPY_DIRECTION = 21 c"hipErrorInvalidMemcpyDirection" c"invalid copy direction for memcpy",
    INSUFFICIENT_DRIVER = 35 c"hipErrorInsufficientDriver" c"driver version is insufficient for runtime version",
    INVALID_DEVICE_FUNCTION = 98 c"hipErrorInvalidDeviceFunction" c"invalid device function",
    NO_DEVICE = 100 c"hipErrorNoDevice" c"no ROCm-capable device is detected",
    INVALID_DEVICE = 101 c"hipErrorInvalidDevice" c"invalid device ordinal",
    INVALID_IMAGE = 200 c"hipErrorInvalidImage" c"device kernel image is invalid",
    INVALID_CONTEXT = 201 c"hipErrorInvalidContext" c"invalid device context",
    NO_BINARY_FOR_GPU = 209 c"hipErrorNoBinaryForGpu" c"no kernel image is available for execution on the device",
    ECC_NOT_CORRECTABLE = 214 c"hipErrorECCNotCorrectable" c"uncorrectable ECC error encountered",
    FILE_NOT_FOUND = 301 c"hipErrorFileNotFound" c"file not found",
    SHARED_OBJECT_INIT_FAILED = 303 c"hipErrorSharedObjectInitFailed" c"shared object initialization failed",
    OPERATING_SYSTEM = 304 c"hipErrorOperatingSystem" c"OS call failed or operation not supported on this OS",
    INVALID_HANDLE = 400 c"hipErrorInvalidHandle" c"invalid resource handle",
    ILLEGAL_STATE = 401 c"hipErrorIllegalState" c"the operation cannot be performed in the present state",
    NOT_FOUND = 500 c"hipErrorNotFound" c"named symbol not found",
    NOT_READY = 600 c"hipErrorNotReady" c"device not ready",
    ILLEGAL_ADDRESS = 700 c"hipErrorIllegalAddress" c"an illegal memory access was encountered",
    LAUNCH_OUT_OF_RESOURCES = 701 c"hipErrorLaunchOutOfResources" c"out of resources for launch",
    LAUNCH_TIME_OUT = 702 c"hipErrorLaunchTimeOut" c"the launch timed out and was terminated",
    CONTEXT_IS_DESTROYED = 709 c"hipErrorContextIsDestroyed" c"context is destroyed",
    ASSERT = 710 c"hipErrorAssert" c"device-side assert triggered",
    HOST_MEMORY_ALREADY_REGISTERED = 712 c"hipErrorHostMemoryAlreadyRegistered" c"part or all of the requested memory range is already mapped",
    HOST_MEMORY_NOT_REGISTERED = 713 c"hipErrorHostMemoryNotRegistered" c"pointer does not correspond to a registered memory region",
    LAUNCH_FAILURE = 719 c"hipErrorLaunchFailure" c"unspecified launch failure",
    NOT_SUPPORTED = 801 c"hipErrorNotSupported" c"operation not supported",
    STREAM_CAPTURE_UNSUPPORTED = 900 c"hipErrorStreamCaptureUnsupported" c"operation not permitted when stream is capturing",
    STREAM_CAPTURE_INVALIDATED = 901 c"hipErrorStreamCaptureInvalidated" c"operation failed due to a previous error during capture",
    STREAM_CAPTURE_MERGE = 902 c"hipErrorStreamCaptureMerge" c"operation would result in a merge of separate capture sequences",
    STREAM_CAPTURE_UNMATCHED = 903 c"hipErrorStreamCaptureUnmatched" c"capture was not ended in the same stream as it began",
    STREAM_CAPTURE_UNJOINED = 904 c"hipErrorStreamCaptureUnjoined" c"capturing stream has unjoined work",
    STREAM_CAPTURE_ISOLATION = 905 c"hipErrorStreamCaptureIsolation" c"dependency created on uncaptured work in another stream",
    STREAM_CAPTURE_IMPLICIT = 906 c"hipErrorStreamCaptureImplicit" c"operation would make the legacy stream depend on a capturing blocking stream",
    CAPTURED_EVENT = 907 c"hipErrorCapturedEvent" c"operation not permitted on an event last recorded in a capturing stream",
    STREAM_CAPTURE_WRONG_THREAD = 908 c"hipErrorStreamCaptureWrongThread" c"attempt to terminate a thread-local capture sequence from another thread",
    UNKNOWN = 999 c"hipErrorUnknown" c"unknown error",
    RUNTIME_MEMORY = 1052 c"hipErrorRuntimeMemory" c"runtime memory call returned error",
    RUNTIME_OTHER = 1053 c"hipErrorRuntimeOther" c"runtime call other than memory returned error",
}

/// The name of a code: `hipErrorOutOfMemory`.
pub(crate) fn name(code: Code) -> &'static CStr {
    NAMED.iter().find(|n| n.0 == code).map_or(c"hipErrorUnknown", |n| n.1)
}

/// What a code means, in words.
pub(crate) fn text(code: Code) -> &'static CStr {
    NAMED.iter().find(|n| n.0 == code).map_or(c"unknown error", |n| n.2)
}
