//! Architectures that are compiled for, and how many waves their registers have room for.
//!
//! Sizes are those of AMD's instruction set documents ("AMD Instinct MI200" and "MI300", "RDNA2", "RDNA3", "RDNA3.5" and
//! "RDNA4 Instruction Set Architecture: Reference Guide"), and of the table of `GRANULATED_WORKITEM_VGPR_COUNT` in LLVM's
//! "User Guide for AMDGPU". Shared memory may leave room for fewer.

use anyhow::{Context, Result};
use portolan::device::{DeviceCaps, DeviceId, DeviceKind, rocm::arch::Arch};

/// An architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    /// As compilers name it.
    pub(super) name: &'static str,
    /// Lanes of a wave.
    pub(super) wave: u32,
    /// Vector registers of a SIMD for each lane of a wave, those of the matrix units included.
    registers: u32,
    /// How many are handed out together.
    granule: u32,
    /// Waves of a SIMD at most.
    waves: u32,
}

const fn target(name: &'static str, wave: u32, registers: u32, granule: u32, waves: u32) -> Target {
    Target { name, wave, registers, granule, waves }
}

/// CDNA 2 and 3, RDNA 2, RDNA 3 as a card and in Strix Halo, RDNA 4.
pub(super) const TARGETS: [Target; 6] = [
    target("gfx90a", 64, 512, 8, 8),
    target("gfx942", 64, 512, 8, 8),
    target("gfx1030", 32, 1024, 16, 16),
    target("gfx1100", 32, 1536, 24, 16),
    target("gfx1151", 32, 1536, 24, 16),
    target("gfx1201", 32, 1536, 24, 16),
];

impl Target {
    /// Waves of a kernel that a SIMD's registers hold at once; 0 if not one.
    pub(super) fn waves_of(&self, registers: u32) -> u32 {
        (self.registers / registers.max(1).next_multiple_of(self.granule)).min(self.waves)
    }

    /// What a device of it can do, without one.
    ///
    /// # Errors
    /// If the name is none of an architecture.
    pub(super) fn caps(&self) -> Result<DeviceCaps> {
        let arch: Arch = self.name.parse().context("the name of a target")?;
        Ok(DeviceCaps {
            id: DeviceId { kind: DeviceKind::Rocm, ordinal: 0 },
            name: self.name.to_owned(),
            features: arch.instructions().into_iter().map(str::to_owned).collect(),
            arch: arch.base,
            wave_width: self.wave,
            integrated: self.name == "gfx1151",
            units: 64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, registers: u32, waves: u32) {
        let target = TARGETS.iter().find(|t| t.name == name).unwrap();
        assert_eq!(target.waves_of(registers), waves, "{name}, {registers} registers");
    }

    #[test]
    fn registers_decide_how_many_waves_there_is_room_for() {
        check("gfx942", 64, 8);
        check("gfx942", 65, 7);
        check("gfx942", 256, 2);
        check("gfx942", 512, 1);
        check("gfx942", 513, 0);
        check("gfx1030", 64, 16);
        check("gfx1030", 65, 12);
        check("gfx1100", 96, 16);
        check("gfx1151", 97, 12);
        check("gfx1201", 256, 5);
        check("gfx1201", 0, 16);
    }

    #[test]
    fn every_target_is_an_architecture_with_its_instructions() {
        let features = TARGETS.map(|target| target.caps().unwrap().features.join(" "));
        let rdna3 = "dot4 wmma_gfx11";
        assert_eq!(features, ["dot4 mfma", "dot4 mfma", "dot4", rdna3, rdna3, "dot4 wmma_gfx12"]);
    }
}
