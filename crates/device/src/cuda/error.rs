use cudarc::driver::{DriverError, sys::CUresult as Code};

use crate::{DeviceError, DeviceId, DeviceKind};

/// That CUDA cannot be used at all.
pub(super) fn unavailable(reason: impl Into<String>, advice: impl Into<String>) -> DeviceError {
    DeviceError::Unavailable { kind: DeviceKind::Cuda, reason: reason.into(), advice: advice.into() }
}

/// The name and the words of an error.
pub(super) fn words(error: DriverError) -> String {
    let text = |c: Result<&std::ffi::CStr, DriverError>| c.ok().map(|c| c.to_string_lossy().into_owned());
    match (text(error.error_name()), text(error.error_string())) {
        (Some(name), Some(words)) => format!("{name} ({words})"),
        _ => format!("error {}", error.0 as u32),
    }
}

/// Whether an error is sticky: the context is of no more use, whatever is called.
fn is_lost(code: Code) -> bool {
    matches!(
        code,
        Code::CUDA_ERROR_ILLEGAL_ADDRESS
            | Code::CUDA_ERROR_LAUNCH_TIMEOUT
            | Code::CUDA_ERROR_HARDWARE_STACK_ERROR
            | Code::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | Code::CUDA_ERROR_MISALIGNED_ADDRESS
            | Code::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | Code::CUDA_ERROR_INVALID_PC
            | Code::CUDA_ERROR_LAUNCH_FAILED
            | Code::CUDA_ERROR_ASSERT
            | Code::CUDA_ERROR_ECC_UNCORRECTABLE
            | Code::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | Code::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | Code::CUDA_ERROR_DEINITIALIZED
            | Code::CUDA_ERROR_EXTERNAL_DEVICE
    )
}

/// An error of a call.
pub(super) fn failed(device: DeviceId, call: &'static str, error: DriverError) -> DeviceError {
    if is_lost(error.0) {
        return DeviceError::Lost { device, reason: format!("{call}: {}", words(error)) };
    }
    DeviceError::Failed { device, call, reason: words(error) }
}
