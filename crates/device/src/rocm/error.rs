use super::sys::hipError_t;
use crate::{DeviceError, DeviceId, DeviceKind};

/// The codes that HIP's headers name, up to HIP 7.1.
const NAMES: &[(u32, &str)] = &[
    (0, "hipSuccess"),
    (1, "hipErrorInvalidValue"),
    (2, "hipErrorOutOfMemory"),
    (3, "hipErrorNotInitialized"),
    (4, "hipErrorDeinitialized"),
    (5, "hipErrorProfilerDisabled"),
    (6, "hipErrorProfilerNotInitialized"),
    (7, "hipErrorProfilerAlreadyStarted"),
    (8, "hipErrorProfilerAlreadyStopped"),
    (9, "hipErrorInvalidConfiguration"),
    (12, "hipErrorInvalidPitchValue"),
    (13, "hipErrorInvalidSymbol"),
    (17, "hipErrorInvalidDevicePointer"),
    (21, "hipErrorInvalidMemcpyDirection"),
    (35, "hipErrorInsufficientDriver"),
    (52, "hipErrorMissingConfiguration"),
    (53, "hipErrorPriorLaunchFailure"),
    (98, "hipErrorInvalidDeviceFunction"),
    (100, "hipErrorNoDevice"),
    (101, "hipErrorInvalidDevice"),
    (200, "hipErrorInvalidImage"),
    (201, "hipErrorInvalidContext"),
    (202, "hipErrorContextAlreadyCurrent"),
    (205, "hipErrorMapFailed"),
    (206, "hipErrorUnmapFailed"),
    (207, "hipErrorArrayIsMapped"),
    (208, "hipErrorAlreadyMapped"),
    (209, "hipErrorNoBinaryForGpu"),
    (210, "hipErrorAlreadyAcquired"),
    (211, "hipErrorNotMapped"),
    (212, "hipErrorNotMappedAsArray"),
    (213, "hipErrorNotMappedAsPointer"),
    (214, "hipErrorECCNotCorrectable"),
    (215, "hipErrorUnsupportedLimit"),
    (216, "hipErrorContextAlreadyInUse"),
    (217, "hipErrorPeerAccessUnsupported"),
    (218, "hipErrorInvalidKernelFile"),
    (219, "hipErrorInvalidGraphicsContext"),
    (300, "hipErrorInvalidSource"),
    (301, "hipErrorFileNotFound"),
    (302, "hipErrorSharedObjectSymbolNotFound"),
    (303, "hipErrorSharedObjectInitFailed"),
    (304, "hipErrorOperatingSystem"),
    (400, "hipErrorInvalidHandle"),
    (401, "hipErrorIllegalState"),
    (500, "hipErrorNotFound"),
    (600, "hipErrorNotReady"),
    (700, "hipErrorIllegalAddress"),
    (701, "hipErrorLaunchOutOfResources"),
    (702, "hipErrorLaunchTimeOut"),
    (704, "hipErrorPeerAccessAlreadyEnabled"),
    (705, "hipErrorPeerAccessNotEnabled"),
    (708, "hipErrorSetOnActiveProcess"),
    (709, "hipErrorContextIsDestroyed"),
    (710, "hipErrorAssert"),
    (712, "hipErrorHostMemoryAlreadyRegistered"),
    (713, "hipErrorHostMemoryNotRegistered"),
    (719, "hipErrorLaunchFailure"),
    (720, "hipErrorCooperativeLaunchTooLarge"),
    (801, "hipErrorNotSupported"),
    (900, "hipErrorStreamCaptureUnsupported"),
    (901, "hipErrorStreamCaptureInvalidated"),
    (902, "hipErrorStreamCaptureMerge"),
    (903, "hipErrorStreamCaptureUnmatched"),
    (904, "hipErrorStreamCaptureUnjoined"),
    (905, "hipErrorStreamCaptureIsolation"),
    (906, "hipErrorStreamCaptureImplicit"),
    (907, "hipErrorCapturedEvent"),
    (908, "hipErrorStreamCaptureWrongThread"),
    (910, "hipErrorGraphExecUpdateFailure"),
    (911, "hipErrorInvalidChannelDescriptor"),
    (912, "hipErrorInvalidTexture"),
    (999, "hipErrorUnknown"),
    (1052, "hipErrorRuntimeMemory"),
    (1053, "hipErrorRuntimeOther"),
    (1054, "hipErrorTbd"),
];

/// Codes after which the device is of no more use to the process, whatever is called: bad ECC, an address fault, a
/// timeout, a destroyed context, an assertion, a failed launch, a runtime that was shut down.
const LOST: [u32; 7] = [4, 214, 700, 702, 709, 710, 719];

/// The name that HIP's headers give a code; none for one that is newer than this table.
pub fn error_name(code: u32) -> Option<&'static str> {
    NAMES.binary_search_by_key(&code, |row| row.0).ok().and_then(|at| NAMES.get(at)).map(|row| row.1)
}

/// The name and the number of a code.
pub(super) fn words(code: hipError_t) -> String {
    match error_name(code.0) {
        Some(name) => format!("{name} ({})", code.0),
        None => format!("HIP error {}", code.0),
    }
}

/// That ROCm cannot be used at all.
pub(super) fn unavailable(reason: impl Into<String>, advice: impl Into<String>) -> DeviceError {
    DeviceError::Unavailable { kind: DeviceKind::Rocm, reason: reason.into(), advice: advice.into() }
}

/// An error of a call.
pub(super) fn failed(device: DeviceId, call: &'static str, code: hipError_t) -> DeviceError {
    if LOST.contains(&code.0) {
        return DeviceError::Lost { device, reason: format!("{call}: {}", words(code)) };
    }
    DeviceError::Failed { device, call, reason: words(code) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(code: u32, expected: &str) {
        assert_eq!(words(hipError_t(code)), expected);
    }

    #[test]
    fn codes_have_names_or_numbers() {
        check(0, "hipSuccess (0)");
        check(2, "hipErrorOutOfMemory (2)");
        check(911, "hipErrorInvalidChannelDescriptor (911)");
        check(1054, "hipErrorTbd (1054)");
        check(913, "HIP error 913");
        check(u32::MAX, "HIP error 4294967295");
        assert!(NAMES.is_sorted_by_key(|row| row.0), "a search by halves needs them in order");
    }

    #[test]
    fn a_fault_is_a_lost_device_and_a_bad_argument_is_not() {
        let id = DeviceId { kind: DeviceKind::Rocm, ordinal: 1 };
        let lost = |code| matches!(failed(id, "hipEventQuery", hipError_t(code)), DeviceError::Lost { .. });
        for code in LOST {
            assert!(lost(code), "{code}");
        }
        for code in [1, 2, 9, 100, 200, 600, 701, 801, 901, 999, 5000] {
            assert!(!lost(code), "{code}");
        }
        let said = failed(id, "hipMalloc", hipError_t(1)).to_string();
        assert_eq!(said, "rocm:1: hipMalloc failed: hipErrorInvalidValue (1)");
    }
}
