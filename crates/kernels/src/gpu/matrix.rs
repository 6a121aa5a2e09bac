//! Which matrix units an AMD GPU has, as `kernels-hip/matrix.h` is told.

use portolan_device::DeviceCaps;

use super::{simt::number, takes::Answer};
use crate::Decline;

/// The kind: 9 (MFMA), 11 or 12 (WMMA of gfx11 or gfx12), with the lanes of its waves.
fn kind(caps: &DeviceCaps) -> Option<(usize, u32)> {
    // The first CDNA has other instructions for bf16, at half the rate.
    if caps.arch.starts_with("gfx908") {
        return None;
    }
    let kinds = [("mfma", (9, 64)), ("wmma_gfx11", (11, 32)), ("wmma_gfx12", (12, 32))];
    kinds.into_iter().find(|(feature, _)| caps.has_feature(feature)).map(|(_, kind)| kind)
}

/// Whether a device has matrix units that `matrix.h` knows.
pub(super) fn takes(caps: &DeviceCaps) -> Answer {
    let (_, lanes) = kind(caps).ok_or(Decline::Arch)?;
    if caps.wave_width == lanes { Ok(()) } else { Err(Decline::Wave) }
}

/// The define that says which.
pub(super) fn define(caps: &DeviceCaps) -> (&'static str, String) {
    number("MATRIX", kind(caps).map_or(0, |(kind, _)| kind))
}

#[cfg(test)]
mod tests {
    use portolan_device::{DeviceId, DeviceKind};

    use super::*;

    #[track_caller]
    fn check(arch: &str, feature: &str, wave_width: u32, expected: Result<&str, Decline>) {
        let caps = DeviceCaps {
            id: DeviceId { kind: DeviceKind::Rocm, ordinal: 0 },
            name: String::new(),
            arch: arch.to_owned(),
            features: vec![feature.to_owned()],
            wave_width,
            integrated: false,
            units: 40,
        };
        assert_eq!(takes(&caps).map(|()| define(&caps).1), expected.map(str::to_owned), "{arch}");
    }

    #[test]
    fn units_are_of_the_architecture() {
        check("gfx90a:sramecc+:xnack-", "mfma", 64, Ok("9"));
        check("gfx942", "mfma", 64, Ok("9"));
        check("gfx1151", "wmma_gfx11", 32, Ok("11"));
        check("gfx1201", "wmma_gfx12", 32, Ok("12"));
        check("gfx1201", "wmma_gfx12", 64, Err(Decline::Wave));
        check("gfx1030", "dot4", 32, Err(Decline::Arch));
        check("gfx908", "mfma", 64, Err(Decline::Arch));
    }
}
