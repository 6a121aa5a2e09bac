//! What goes wrong while weights go to a device: typed errors, nothing leaked, no hang.

use portolan_device::{
    DeviceError, MemoryKind,
    fake::{Call, FakeBackend, FakeOptions},
};
use portolan_testkit::fixture::Safetensors;
use portolan_weights::{Checkpoint, Expr, LoadMode, Loader, WeightError, plan_load};

use crate::{
    staged::{Arm, Model, arms, load_on, plain},
    support::{folder, request},
};

/// Every call of a clean load fails in turn.
fn each_call_fails(model: &Model, arm: Arm, lost: bool) {
    let expected = model.expected();
    let clean = FakeBackend::new(FakeOptions::default());
    load_on(&clean, model, arm).unwrap();
    for call in Call::ALL {
        for k in 0..clean.calls(call) {
            let fake = FakeBackend::new(FakeOptions { fail: Some((call, k)), lost, ..Default::default() });
            let what = format!("{arm:?}: {call:?} number {k}");
            match load_on(&fake, model, arm) {
                Ok(loaded) => {
                    // Memory that cannot be pinned is done without, a refused chunk is halved; a wait may have been
                    // the loader's last, when all was there.
                    assert!(
                        matches!(call, Call::Pin | Call::Alloc | Call::WaitEvent),
                        "{what} was not noticed"
                    );
                    assert!(loaded.planes == expected, "{what}: wrong bytes");
                }
                Err(WeightError::Device(error)) => {
                    assert_eq!(matches!(error, DeviceError::Lost { .. }), lost, "{what}: {error}");
                }
                Err(other) => panic!("{what}: {other}"),
            }
            assert_eq!((fake.live(), fake.faults()), (0, vec![]), "{what}");
        }
    }
}

#[test]
fn each_call_fails_once() {
    for arm in arms(&[8 << 10], &[1, 3]) {
        each_call_fails(&plain(), arm, false);
    }
}

#[test]
fn the_device_is_lost_at_each_call() {
    for arm in arms(&[8 << 10], &[2]) {
        each_call_fails(&plain(), arm, true);
    }
}

#[test]
fn out_of_memory_names_the_tensor() {
    let model = plain();
    for mode in [LoadMode::Eager, LoadMode::Lazy] {
        let arm = Arm { mode, pinned: true, slot_bytes: 8 << 10, readers: 2 };
        // `embed` fits, `large` (301 x 200 x 4 bytes) does not.
        let fake = FakeBackend::new(FakeOptions { device_bytes: 100_000, ..Default::default() });
        let Err(error) = load_on(&fake, &model, arm) else { panic!("it does not fit") };
        let WeightError::Device(DeviceError::NoRoom { tensor, asked, pool, .. }) = &error else {
            panic!("{error}")
        };
        assert_eq!((tensor.as_str(), *asked, *pool), ("large", 240_896, "device"));
        assert_eq!((fake.live(), fake.faults()), (0, vec![]));
    }
}

#[test]
fn no_pinned_memory_means_pageable() {
    let model = plain();
    let arm = Arm { mode: LoadMode::Eager, pinned: true, slot_bytes: 8 << 10, readers: 2 };
    let fake = FakeBackend::new(FakeOptions { pinned_bytes: 100, ..Default::default() });
    let loaded = load_on(&fake, &model, arm).unwrap();
    assert!(loaded.planes == model.expected());
    assert_eq!((loaded.stats.pinned_tensors, loaded.stats.pinned_peak), (0, 0));
    assert!(loaded.stats.pageable_tensors > 0 && fake.calls(Call::Copy) == 0);
}

#[test]
fn a_file_cut_while_the_loader_waits() {
    let dir = folder();
    let path = dir.path().join("m.safetensors");
    let values: Vec<f32> = (0..40_000).map(|i| i as f32).collect();
    Safetensors::new()
        .f32("a", &[100, 200], &values[..20_000])
        .f32("b", &[100, 200], &values[20_000..])
        .write(&path);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let requests = vec![request("a", Expr::source("a")), request("b", Expr::source("b"))];
    let plan = plan_load(&checkpoint, requests).unwrap();
    for arm in arms(&[8 << 10], &[1, 4]) {
        let fake = FakeBackend::new(FakeOptions::default());
        let device = fake.device();
        let stream = device.stream().unwrap();
        let whole = std::fs::read(&path).unwrap();
        let mut loader = Loader::new(&checkpoint, &plan, &device, &arm.options()).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(whole.len() as u64 - 1000).unwrap();
        let error = match arm.mode {
            LoadMode::Eager => loader.load_all(&stream, &mut |_, _| {}),
            LoadMode::Lazy => loader.load_one(0, &stream).and_then(|_| loader.load_one(1, &stream)).map(drop),
        }
        .unwrap_err();
        assert!(matches!(&error, WeightError::ShortRead { path: p, .. } if *p == path), "{error}");
        assert!(!loader.is_resident(1) && loader.is_resident(0) == (arm.mode == LoadMode::Lazy));
        // Whole again: the same loader goes on.
        std::fs::write(&path, &whole).unwrap();
        loader.load_all(&stream, &mut |_, _| {}).unwrap();
        let plane = loader.weights().unwrap()[1].planes[0].clone();
        assert!(fake.bytes(&plane) == whole[whole.len() - 80_000..]);
        drop((loader, stream, device));
        assert_eq!(
            (fake.bytes_of(MemoryKind::Device), fake.faults()),
            (80_128, vec![]),
            "the slice keeps its chunk"
        );
    }
}
