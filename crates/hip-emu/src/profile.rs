//! The devices that the emulator can pretend to be.

/// A device. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    /// As a program names it in `HIP_EMU_DEVICE`.
    pub(crate) short: &'static str,
    /// As the runtime says it, with features.
    pub(crate) arch: &'static str,
    pub(crate) name: &'static str,
    pub(crate) lanes: u32,
    /// Shares the host's memory.
    pub(crate) integrated: bool,
    pub(crate) units: i32,
    pub(crate) pool: u64,
    pub(crate) major: i32,
    pub(crate) minor: i32,
}

/// Shared memory (LDS) of a block on all of them.
pub(crate) const SHARED_BYTES: u32 = 64 << 10;

const GIB: u64 = 1 << 30;

/// All of them. The first is taken where none is named.
pub(crate) const PROFILES: [Profile; 5] = [
    Profile {
        short: "gfx1151",
        arch: "gfx1151",
        name: "AMD Radeon 8060S Graphics (emulated)",
        lanes: 32,
        integrated: true,
        units: 20,
        pool: 62 * GIB,
        major: 11,
        minor: 5,
    },
    Profile {
        short: "gfx1030",
        arch: "gfx1030",
        name: "AMD Radeon RX 6900 XT (emulated)",
        lanes: 32,
        integrated: false,
        units: 40,
        pool: 16 * GIB,
        major: 10,
        minor: 3,
    },
    Profile {
        short: "gfx1100",
        arch: "gfx1100",
        name: "AMD Radeon RX 7900 XTX (emulated)",
        lanes: 32,
        integrated: false,
        units: 48,
        pool: 24 * GIB,
        major: 11,
        minor: 0,
    },
    Profile {
        short: "gfx1201",
        arch: "gfx1201",
        name: "AMD Radeon RX 9070 XT (emulated)",
        lanes: 32,
        integrated: false,
        units: 32,
        pool: 16 * GIB,
        major: 12,
        minor: 0,
    },
    Profile {
        short: "gfx942",
        arch: "gfx942:sramecc+:xnack-",
        name: "AMD Instinct MI300X (emulated)",
        lanes: 64,
        integrated: false,
        units: 304,
        pool: 192 * GIB,
        major: 9,
        minor: 4,
    },
];

/// The device of a name.
pub(crate) fn find(short: &str) -> Option<Profile> {
    PROFILES.iter().copied().find(|p| p.short == short)
}
