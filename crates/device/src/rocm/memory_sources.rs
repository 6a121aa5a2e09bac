//! What each source says of the memory that a GPU can use: the runtime, the kernel's driver, the host.
//!
//! A discrete card has memory of its own (VRAM), and reaches some of the host's through a table (GTT). An integrated
//! one has a part of the host's memory that the firmware set aside (also called VRAM) and reaches the rest through the
//! same table. These are different pools, and which one an allocation comes from depends on the call: `hipMalloc`,
//! `hipHostMalloc` or `hipMallocManaged`. So nothing here adds pools up or takes the larger one.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{MemoryInfo, env};

/// What was found. A source that says nothing is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySources {
    /// `hipMemGetInfo`: where `hipMalloc` takes from.
    pub runtime: Option<MemoryInfo>,
    /// The card's own memory, or what the firmware set aside, as the kernel's driver counts it.
    pub vram: Option<MemoryInfo>,
    /// The host's memory that the GPU can map, as the kernel's driver counts it.
    pub gtt: Option<MemoryInfo>,
    /// The host.
    pub host: MemoryInfo,
}

impl MemorySources {
    /// The pool of host memory that kernels reach ([`crate::MemoryKind::Mapped`]).
    ///
    /// Where the device offers managed memory, which is paged, that is all that the host has left. Else it is
    /// `hipHostMalloc`'s, which is bounded by the GTT as well: the smaller of the two.
    pub fn mapped(&self, managed: bool) -> MemoryInfo {
        match self.gtt {
            Some(gtt) if !managed && gtt.free < self.host.free => gtt,
            _ => self.host,
        }
    }

    /// Whether an integrated GPU's `hipMalloc` takes from the host's memory, and not from what the firmware set aside:
    /// so it is where the runtime counts more than that. Where nobody says how much it is, the answer is the careful
    /// one, that no byte be counted as free twice.
    pub fn device_is_host_memory(&self) -> bool {
        match (self.runtime, self.vram) {
            (Some(runtime), Some(vram)) => runtime.total > vram.total,
            _ => true,
        }
    }

    /// Each count that was found, for a report.
    pub fn found(&self) -> Vec<MemoryInfo> {
        [self.runtime, self.vram, self.gtt, Some(self.host)].into_iter().flatten().collect()
    }
}

/// The root of sysfs: `/sys`, or what `PORTOLAN_SYSFS_ROOT` names.
pub fn sysfs_root() -> PathBuf {
    env::path("PORTOLAN_SYSFS_ROOT").unwrap_or_else(|| PathBuf::from("/sys"))
}

/// VRAM and GTT of the card at a place on the bus (`0000:c6:00.0`), below a root of sysfs. Without a place it is the
/// one card that counts its memory, and none where there are several.
pub fn card_memory(root: &Path, bus_id: Option<&str>) -> (Option<MemoryInfo>, Option<MemoryInfo>) {
    let Ok(entries) = fs::read_dir(root.join("class/drm")) else { return (None, None) };
    let cards = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // `card0` is a card, `card0-HDMI-A-1` one of its connectors.
        let number = name.strip_prefix("card")?;
        number.chars().all(|c| c.is_ascii_digit()).then(|| entry.path().join("device"))
    });
    let cards: Vec<PathBuf> = cards.filter(|card| card.join("mem_info_vram_total").exists()).collect();
    let card = match bus_id {
        Some(id) => cards.iter().find(|card| slot_of(card).is_some_and(|slot| slot.eq_ignore_ascii_case(id))),
        None => cards.first().filter(|_| cards.len() == 1),
    };
    let Some(card) = card else { return (None, None) };
    (pool(card, "mem_info_vram"), pool(card, "mem_info_gtt"))
}

/// A card's place on the bus.
fn slot_of(card: &Path) -> Option<String> {
    let text = fs::read_to_string(card.join("uevent")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("PCI_SLOT_NAME=")).map(|slot| slot.trim().to_owned())
}

fn pool(card: &Path, source: &'static str) -> Option<MemoryInfo> {
    let number = |what: &str| -> Option<u64> {
        fs::read_to_string(card.join(format!("{source}_{what}"))).ok()?.trim().parse().ok()
    };
    let total = number("total")?;
    // A driver that does not say what is used leaves all of it free.
    let used = number("used").unwrap_or(0);
    Some(MemoryInfo { free: total.saturating_sub(used), total, source })
}
