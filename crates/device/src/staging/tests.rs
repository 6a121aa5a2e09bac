use super::*;
use crate::fake::{Call, FakeBackend, FakeOptions};

fn options(slot_bytes: usize) -> StagingOptions {
    StagingOptions { slot_bytes, ..StagingOptions::default() }
}

/// A pool that can pin `pinned` bytes, all of its slots taken: their sizes, and whether they are pinned.
#[track_caller]
fn check_slots(slot_bytes: usize, pinned: usize, expected: &[usize], is_pinned: bool) {
    let fake = FakeBackend::new(FakeOptions { pinned_bytes: pinned, ..Default::default() });
    let device = fake.device();
    let mut pool = device.staging(&options(slot_bytes)).unwrap();
    let slots: Vec<StagingSlot> = std::iter::from_fn(|| pool.acquire().unwrap()).collect();
    assert_eq!(slots.iter().map(StagingSlot::len).collect::<Vec<_>>(), expected);
    assert_eq!((pool.is_pinned(), slots.iter().all(StagingSlot::is_pinned)), (is_pinned, is_pinned));
    assert_eq!(pool.take_counters().pinned_peak, fake.pinned_peak() as u64);
    drop((slots, pool));
    drop(device);
    assert_eq!((fake.live(), fake.faults()), (0, vec![]));
}

#[test]
fn hip_3716_slots_are_halved_then_pageable() {
    const MIB: usize = 1 << 20;
    check_slots(8 * MIB, 1 << 30, &[8 * MIB; 4], true);
    check_slots(8 * MIB, 17 * MIB, &[8 * MIB, 8 * MIB, MIB], true);
    check_slots(8 * MIB, 5 * MIB, &[4 * MIB, MIB], true);
    check_slots(8 * MIB, MIB, &[MIB], true);
    check_slots(8 * MIB, MIB - 1, &[8 * MIB], false);
    check_slots(1000, 1 << 30, &[1024; 4], true);
    check_slots(1000, 100, &[1024], false);
}

#[track_caller]
fn check_bytes(need: u64, pinned: bool, expected_mib: u64) {
    let options = StagingOptions { pinned, ..StagingOptions::default() };
    assert_eq!(options.bytes_for(need), expected_mib << 20, "{need} bytes");
}

#[test]
fn staging_is_bounded_and_no_larger_than_the_load() {
    for (need, expected) in [(0, 0), (1, 1), (3 << 20, 3), (64 << 20, 64), (65 << 20, 128), (1 << 40, 256)] {
        check_bytes(need, true, expected);
        check_bytes(need, false, expected.min(64));
    }
}

#[test]
fn a_larger_load_makes_the_ring_anew() {
    let fake = FakeBackend::new(FakeOptions::default());
    let device = fake.device();
    for (slot_bytes, pins) in [(4096, 1), (2048, 1), (8192, 2), (8192, 2)] {
        let mut pool = device.staging(&options(slot_bytes)).unwrap();
        let slot = pool.acquire().unwrap().unwrap();
        pool.give_back(slot);
        assert_eq!(fake.calls(Call::Pin), pins, "asked for {slot_bytes}");
    }
    assert_eq!(fake.bytes_of(MemoryKind::Pinned), 8192);
    device.staging(&options(1)).unwrap().release().unwrap();
    assert_eq!(fake.live(), 0);
}

/// A device with an arena of two tensors in one chunk: 1000 bytes (padded to 1024) and 3000 (to 3072).
fn arena(fake: &FakeBackend) -> (Device, Stream, WeightArena) {
    let device = fake.device();
    let stream = device.stream().unwrap();
    let arena = WeightArena::reserve(&device, &[("a", 1000), ("b", 3000)], 1 << 20).unwrap();
    (device, stream, arena)
}

#[track_caller]
fn check_copies(transfers: &[(usize, usize, usize, usize)], expected: Option<usize>) {
    let fake = FakeBackend::new(FakeOptions::default());
    let (device, stream, mut arena) = arena(&fake);
    let mut pool = device.staging(&options(4096)).unwrap();
    let mut slot = pool.acquire().unwrap().unwrap();
    slot.carve(4096).unwrap().fill(7);
    let transfers: Vec<Transfer> =
        transfers.iter().map(|&(src, item, offset, len)| Transfer { src, item, offset, len }).collect();
    let copies = pool.submit(slot, &stream, &mut arena, &transfers);
    assert_eq!(copies.as_ref().ok().copied(), expected, "{copies:?}");
    assert_eq!(fake.calls(Call::Copy), expected.unwrap_or(0));
}

#[test]
fn ranges_are_merged_and_checked() {
    check_copies(&[(0, 0, 0, 1024), (1024, 1, 0, 3000)], Some(1));
    check_copies(&[(0, 0, 0, 1000), (1024, 1, 0, 3000)], Some(2));
    check_copies(&[(0, 1, 0, 100), (100, 1, 100, 50), (150, 1, 160, 50)], Some(2));
    check_copies(&[(0, 0, 0, 0)], Some(0));
    check_copies(&[], Some(0));
    check_copies(&[(0, 0, 0, 1025)], None);
    check_copies(&[(4000, 1, 0, 97)], None);
    check_copies(&[(0, 2, 0, 1)], None);
    check_copies(&[(0, 1, usize::MAX, 2)], None);
    check_copies(&[(usize::MAX, 1, 0, 2)], None);
}

#[test]
fn a_part_that_is_held_keeps_its_slot_from_being_used() {
    let fake = FakeBackend::new(FakeOptions::default());
    let (device, stream, mut arena) = arena(&fake);
    let mut pool = device.staging(&StagingOptions { slots: 1, ..options(4096) }).unwrap();
    let mut slot = pool.acquire().unwrap().unwrap();
    let part = slot.carve(10).unwrap();
    assert!(slot.carve(4087).is_none() && slot.room() == 4086);
    let transfer = Transfer { src: 0, item: 0, offset: 0, len: 10 };
    pool.submit(slot, &stream, &mut arena, &[transfer]).unwrap_err();
    pool.acquire().unwrap_err();
    assert_eq!(fake.calls(Call::Copy), 0);
    drop(part);
    assert!(pool.acquire().unwrap().is_some() && pool.acquire().unwrap().is_some());
}

#[test]
fn destinations_outlive_their_copies() {
    for pinned in [true, false] {
        let fake = FakeBackend::new(FakeOptions::default());
        let (device, stream, mut arena) = arena(&fake);
        let mut pool = device.staging(&StagingOptions { pinned, ..options(4096) }).unwrap();
        let slot = pool.acquire().unwrap().unwrap();
        let transfer = Transfer { src: 0, item: 0, offset: 0, len: 1000 };
        pool.submit(slot, &stream, &mut arena, &[transfer]).unwrap();
        drop(arena);
        assert_eq!(fake.bytes_of(MemoryKind::Device), 4096, "a copy is under way");
        pool.drain().unwrap();
        assert_eq!(fake.bytes_of(MemoryKind::Device), 0);
        drop(pool);
        drop((device, stream));
        assert_eq!((fake.live(), fake.faults()), (0, vec![]));
    }
}

#[test]
fn memory_that_the_host_sees_is_filled_in_place() {
    let device = Device::cpu(&crate::cpu::CpuOptions { threads: 1 }).unwrap();
    let mut arena = WeightArena::reserve(&device, &[("a", 3), ("none", 0), ("b", 5)], 1 << 20).unwrap();
    for (range, (byte, len)) in arena.host_mut().unwrap().into_iter().zip([(1, 3), (2, 0), (3, 5)]) {
        assert_eq!(range.len(), len);
        range.fill(byte);
    }
    let mut seen = [0; 5];
    // SAFETY: nothing writes the arena.
    unsafe { device.stream().unwrap().download(&mut seen, &arena.slice(2, 0, 5).unwrap()) }.unwrap();
    assert_eq!(seen, [3; 5]);
    let mut pool = device.staging(&options(4096)).unwrap();
    let slot = pool.acquire().unwrap().unwrap();
    let transfer = Transfer { src: 0, item: 0, offset: 0, len: 1 };
    pool.submit(slot, &device.stream().unwrap(), &mut arena, &[transfer]).unwrap_err();
}

/// Chunks that a fake device of `memory` bytes gives for tensors of these sizes; none where there is no room.
#[track_caller]
fn check_arena(
    sizes: &[usize],
    chunk: usize,
    memory: usize,
    fail: Option<usize>,
    expected: Result<usize, &str>,
) {
    let fail = fail.map(|k| (Call::Alloc, k));
    let fake = FakeBackend::new(FakeOptions { device_bytes: memory, fail, ..Default::default() });
    let names: Vec<String> = (0..sizes.len()).map(|i| i.to_string()).collect();
    let tensors: Vec<(&str, usize)> = names.iter().map(String::as_str).zip(sizes.iter().copied()).collect();
    match WeightArena::reserve(&fake.device(), &tensors, chunk) {
        Ok(arena) => {
            assert_eq!(Ok(arena.chunks()), expected);
            let mut ends = std::collections::HashMap::new();
            for (item, &len) in sizes.iter().enumerate() {
                let slice = arena.slice(item, 0, len).unwrap();
                assert_eq!(slice.len(), len);
                if len > 0 {
                    let end = ends.entry(slice.buffer().device_addr()).or_insert(0);
                    assert!(slice.offset().is_multiple_of(256) && slice.offset() >= *end, "tensor {item}");
                    *end = slice.offset() + len;
                }
            }
        }
        Err(DeviceError::NoRoom { tensor, .. }) => assert_eq!(Err(tensor.as_str()), expected),
        Err(other) => panic!("{other}"),
    }
    assert_eq!((fake.live(), fake.faults()), (0, vec![]));
}

#[test]
fn arenas_are_cut_and_halved() {
    check_arena(&[], 1000, 0, None, Ok(0));
    check_arena(&[0, 0], 1000, 1000, None, Ok(1));
    check_arena(&[256; 8], 1024, 1 << 20, None, Ok(2));
    check_arena(&[256; 8], 512 << 20, 1 << 20, None, Ok(1));
    check_arena(&[100, 5000, 100], 1024, 1 << 20, None, Ok(3));
    // The first try is refused: halves of what was asked for.
    check_arena(&[256; 8], 512 << 20, 1 << 20, Some(0), Ok(2));
    check_arena(&[256; 8], 512 << 20, 2047, None, Err("7"));
    check_arena(&[256, 4096, 256], 1 << 20, 4096, None, Err("1"));
    check_arena(&[usize::MAX, 1], 1 << 20, 4096, None, Err("0"));
    check_arena(&[1, usize::MAX - 3], 1 << 20, 4096, None, Err("1"));
    assert_eq!(WeightArena::planned_bytes(&[3 << 20, 100], 3 << 20), (4 << 20) + (2 << 20));
    assert_eq!(WeightArena::planned_bytes(&[usize::MAX, usize::MAX], 1), u64::MAX);
}
