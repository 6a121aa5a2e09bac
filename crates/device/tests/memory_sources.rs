//! What the kernel's driver says of a GPU's memory, over trees like those of sysfs.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{fs, path::Path};

use portolan_device::{
    MemoryInfo,
    rocm::memory_sources::{MemorySources, card_memory},
};

const GIB: u64 = 1 << 30;

/// Total and used bytes of VRAM and GTT.
type Counts = [u64; 4];

fn card(root: &Path, name: &str, slot: &str, counts: Option<Counts>) {
    let device = root.join("class/drm").join(name).join("device");
    fs::create_dir_all(&device).unwrap();
    let uevent = format!("DRIVER=amdgpu\nPCI_CLASS=38000\nPCI_SLOT_NAME={slot}\n");
    fs::write(device.join("uevent"), uevent).unwrap();
    let names = ["vram_total", "vram_used", "gtt_total", "gtt_used"];
    for (name, value) in names.iter().zip(counts.unwrap_or_default()).filter(|_| counts.is_some()) {
        fs::write(device.join(format!("mem_info_{name}")), format!("{value}\n")).unwrap();
    }
}

fn pool(total: u64, used: u64, source: &'static str) -> Option<MemoryInfo> {
    Some(MemoryInfo { free: total - used, total, source })
}

#[track_caller]
fn check(root: &Path, bus_id: Option<&str>, expected: Option<Counts>) {
    let expected = expected.map_or((None, None), |[vram, vram_used, gtt, gtt_used]| {
        (pool(vram, vram_used, "mem_info_vram"), pool(gtt, gtt_used, "mem_info_gtt"))
    });
    assert_eq!(card_memory(root, bus_id), expected, "{bus_id:?}");
}

/// An integrated GPU whose firmware set 62 GiB aside.
const APU: Counts = [62 * GIB, 3 * GIB, 31 * GIB, GIB];
/// A card with 24 GiB of its own.
const CARD: Counts = [24 * GIB, 0, 47 * GIB, 0];

#[test]
fn an_integrated_gpu_alone() {
    let root = tempfile::tempdir().unwrap();
    card(root.path(), "card1", "0000:c6:00.0", Some(APU));
    card(root.path(), "card1-HDMI-A-1", "0000:c6:00.0", Some([1; 4]));
    check(root.path(), Some("0000:c6:00.0"), Some(APU));
    check(root.path(), Some("0000:C6:00.0"), Some(APU));
    check(root.path(), None, Some(APU));
    check(root.path(), Some("0000:03:00.0"), None);
}

#[test]
fn a_card_beside_others_is_found_by_its_place() {
    let root = tempfile::tempdir().unwrap();
    card(root.path(), "card0", "0000:00:02.0", None);
    card(root.path(), "card1", "0000:c6:00.0", Some(APU));
    card(root.path(), "card2", "0000:03:00.0", Some(CARD));
    check(root.path(), Some("0000:03:00.0"), Some(CARD));
    check(root.path(), Some("0000:c6:00.0"), Some(APU));
    check(root.path(), Some("0000:00:02.0"), None);
    // Two that count their memory, and no place to tell them apart.
    check(root.path(), None, None);
}

#[test]
fn what_is_missing_or_no_number_is_not_made_up() {
    let root = tempfile::tempdir().unwrap();
    check(root.path(), None, None);
    card(root.path(), "card0", "0000:03:00.0", Some(CARD));
    let device = root.path().join("class/drm/card0/device");
    fs::write(device.join("mem_info_gtt_total"), "no number").unwrap();
    fs::remove_file(device.join("mem_info_vram_used")).unwrap();
    assert_eq!(card_memory(root.path(), None), (pool(24 * GIB, 0, "mem_info_vram"), None));
    // More used than there is: none is free.
    fs::write(device.join("mem_info_vram_used"), (25 * GIB).to_string()).unwrap();
    let (vram, _) = card_memory(root.path(), None);
    assert_eq!(vram, Some(MemoryInfo { free: 0, total: 24 * GIB, source: "mem_info_vram" }));
}

#[test]
fn mapped_memory_is_the_hosts_bounded_by_what_the_gpu_maps() {
    let host = MemoryInfo { free: 120 * GIB, total: 125 * GIB, source: "MemAvailable" };
    let gtt = |free| Some(MemoryInfo { free, total: 124 * GIB, source: "mem_info_gtt" });
    let check = |gtt: Option<MemoryInfo>, managed: bool, expected: u64, source: &str| {
        let sources = MemorySources { runtime: None, vram: None, gtt, host };
        let found = sources.mapped(managed);
        assert_eq!((found.free, found.source), (expected * GIB, source), "{gtt:?}, managed {managed}");
    };
    check(gtt(62 * GIB), false, 62, "mem_info_gtt");
    check(gtt(62 * GIB), true, 120, "MemAvailable");
    check(gtt(124 * GIB), false, 120, "MemAvailable");
    check(None, false, 120, "MemAvailable");
    check(None, true, 120, "MemAvailable");
}

#[test]
fn rocm_5444_the_runtimes_pool_is_the_hosts_memory_or_what_the_firmware_set_aside() {
    let info = |gib: u64, source| MemoryInfo { free: gib * GIB, total: gib * GIB, source };
    let host = info(120, "MemAvailable");
    let check = |runtime: Option<u64>, vram: Option<u64>, expected: bool| {
        let runtime = runtime.map(|gib| info(gib, "hipMemGetInfo"));
        let vram = vram.map(|gib| info(gib, "mem_info_vram"));
        let sources = MemorySources { runtime, vram, gtt: None, host };
        assert_eq!(sources.device_is_host_memory(), expected, "{runtime:?}, {vram:?}");
        assert_eq!(sources.found().len(), 1 + usize::from(runtime.is_some()) + usize::from(vram.is_some()));
    };
    check(Some(62), Some(62), false);
    check(Some(61), Some(62), false);
    check(Some(62), Some(4), true);
    check(Some(62), None, true);
    check(None, Some(4), true);
}
