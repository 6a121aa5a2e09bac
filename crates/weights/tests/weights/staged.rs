//! Loading to memory that the host does not see: the four arms give the bytes of the CPU's load.

use std::{path::Path, sync::Arc};

use portolan_device::{
    DType, Device, MemoryKind, StagingOptions,
    fake::{Call, FakeBackend, FakeOptions},
};
use portolan_testkit::fixture::{Gguf, Safetensors};
use portolan_weights::{
    Checkpoint, Expr, LoadMode, LoadOptions, LoadPlan, LoadRequest, LoadTransferStats, Loader, MemoryPlan,
    Repack, Result, WeightTensor, plan_load,
};

use crate::support::{ReverseGroups, cpu, folder, load_requests, request, take_planes, write};

/// A checkpoint, and what is asked of it.
pub(crate) struct Model {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) requests: Vec<LoadRequest>,
    _dir: tempfile::TempDir,
}

impl Model {
    fn new(dir: tempfile::TempDir, path: &Path, requests: Vec<LoadRequest>) -> Self {
        Model { checkpoint: Checkpoint::open(path).unwrap(), requests, _dir: dir }
    }

    pub(crate) fn plan(&self) -> LoadPlan {
        plan_load(&self.checkpoint, self.requests.clone()).unwrap()
    }

    /// What the CPU's load puts into each plane of each weight.
    pub(crate) fn expected(&self) -> Vec<Vec<Vec<u8>>> {
        let (loaded, _) = load_requests(&self.checkpoint, self.requests.clone(), 2).unwrap();
        loaded.into_iter().map(|l| l.planes).collect()
    }
}

fn bytes(n: usize, seed: usize) -> Vec<u8> {
    (0..n).map(|i| ((i * 31 + i / 257 + seed * 97) % 251) as u8).collect()
}

fn floats(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i % 8191) as f32 - 77.0).collect()
}

fn repacked(name: &str, by_blocks: bool) -> LoadRequest {
    let repack = Some(Arc::new(ReverseGroups { multiple: 4, by_blocks }) as Arc<dyn Repack>);
    LoadRequest { repack, ..request(&format!("{name}.packed{by_blocks}"), Expr::source(name)) }
}

/// Plain tensors: small and large ones, an empty one, two that are one, decoded ones, repacked ones.
pub(crate) fn plain() -> Model {
    let dir = folder();
    let path = dir.path().join("m.safetensors");
    let mut file = Safetensors::new()
        .f32("large", &[301, 200], &floats(301 * 200))
        .f32("rows", &[77, 64], &floats(77 * 64))
        .f32("empty", &[0, 8], &[])
        .tensor("half", "BF16", &[50, 33], &bytes(50 * 33 * 2, 1));
    let mut requests = vec![
        request("embed", Expr::source("rows")),
        request("large", Expr::source("large")),
        request("head", Expr::source("rows")),
        request("empty", Expr::source("empty")),
        request("half", Expr::source("half").f32()),
        repacked("rows", true),
        repacked("rows", false),
    ];
    for i in 0..20 {
        let name = format!("norm.{i}");
        file = file.f32(&name, &[i * 13 + 1], &floats(i * 13 + 1));
        requests.push(request(&name, Expr::source(&name)));
    }
    file.write(&path);
    Model::new(dir, &path, requests)
}

/// MLX modules: three planes each.
fn mlx() -> Model {
    let dir = folder();
    let mut file = Safetensors::new();
    let mut requests = Vec::new();
    for (i, rows) in [40, 1, 300, 7].into_iter().enumerate() {
        let name = format!("layer.{i}");
        let (k, groups) = (256, 4);
        file = file
            .tensor(&format!("{name}.weight"), "U32", &[rows, k / 8], &bytes(rows * k / 2, i))
            .tensor(&format!("{name}.scales"), "F16", &[rows, groups], &bytes(rows * groups * 2, i + 1))
            .tensor(&format!("{name}.biases"), "F16", &[rows, groups], &bytes(rows * groups * 2, i + 2));
        requests.push(request(&name, Expr::source(format!("{name}.weight"))));
    }
    requests.push(repacked("layer.2.weight", true));
    file.write(dir.path().join("model.safetensors"));
    write(dir.path(), "config.json", r#"{"quantization": {"bits": 4, "group_size": 64}}"#);
    let path = dir.path().to_owned();
    Model::new(dir, &path, requests)
}

/// GGUF blocks, taken apart while they are read.
fn gguf() -> Model {
    let dir = folder();
    let path = dir.path().join("m.gguf");
    let (rows, k) = (130, 512);
    let blocks: Vec<u8> = (0..rows * k / 32)
        .flat_map(|i| {
            let mut block = [(i % 249) as u8; 18];
            block[..2].copy_from_slice(&half::f16::from_f32((i % 5) as f32).to_le_bytes());
            block
        })
        .collect();
    let norm: Vec<u8> = floats(100).iter().flat_map(|v| v.to_le_bytes()).collect();
    Gguf::new().tensor("w", 2, &[rows, k], &blocks).tensor("norm", 0, &[100], &norm).write(&path);
    let unpermuted = Expr::UnpermuteHeads { of: Box::new(Expr::source("w")), heads: 13 };
    let requests = vec![
        request("w", Expr::source("w")),
        request("norm", Expr::source("norm")),
        request("q", unpermuted),
    ];
    Model::new(dir, &path, requests)
}

/// One way to load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arm {
    pub(crate) mode: LoadMode,
    pub(crate) pinned: bool,
    pub(crate) slot_bytes: usize,
    pub(crate) readers: usize,
}

impl Arm {
    pub(crate) fn options(self) -> LoadOptions {
        let staging = StagingOptions { slot_bytes: self.slot_bytes, pinned: self.pinned, slots: 4 };
        LoadOptions { readers: self.readers, staging: Some(staging), chunk_bytes: 100 << 10 }
    }
}

/// What is on the device once all of its work has run.
pub(crate) struct OnDevice {
    pub(crate) planes: Vec<Vec<Vec<u8>>>,
    pub(crate) stats: LoadTransferStats,
}

/// Loads all weights on a fake device; lazily: the last first, each asked for twice.
pub(crate) fn load_on(fake: &FakeBackend, model: &Model, arm: Arm) -> Result<OnDevice> {
    let device = fake.device();
    let stream = device.stream()?;
    let mut loader = Loader::new(&model.checkpoint, &model.plan(), &device, &arm.options())?;
    let weights: Vec<WeightTensor> = loader.weights()?;
    assert_eq!((loader.resident_bytes(), fake.calls(Call::Copy) + fake.calls(Call::Upload)), (0, 0));
    match arm.mode {
        LoadMode::Eager => {
            let mut seen = vec![0];
            loader.load_all(&stream, &mut |done, total| {
                assert!(done > *seen.last().unwrap() && done <= total, "{done} of {total} after {seen:?}");
                seen.push(done);
            })?;
        }
        LoadMode::Lazy => {
            for index in (0..weights.len()).rev() {
                let known = loader.is_resident(index);
                assert_eq!(loader.load_one(index, &stream)?, !known, "weight {index}");
                assert!(loader.is_resident(index) && !loader.load_one(index, &stream)?);
            }
        }
    }
    assert!(loader.is_all_resident());
    let before = (fake.calls(Call::Copy), fake.calls(Call::Upload));
    for index in 0..weights.len() {
        assert!(!loader.load_one(index, &stream)?, "weight {index} is there");
    }
    loader.load_all(&stream, &mut |_, _| panic!("nothing is left to load"))?;
    assert_eq!((fake.calls(Call::Copy), fake.calls(Call::Upload)), before, "nothing is uploaded later");
    stream.synchronize()?;
    let planes = weights.iter().map(|w| w.planes.iter().map(|p| fake.bytes(p)).collect()).collect();
    Ok(OnDevice { planes, stats: loader.stats().clone() })
}

pub(crate) fn arms(slots: &[usize], readers: &[usize]) -> Vec<Arm> {
    let mut arms = Vec::new();
    for mode in [LoadMode::Eager, LoadMode::Lazy] {
        for pinned in [true, false] {
            for &slot_bytes in slots {
                arms.extend(readers.iter().map(|&readers| Arm { mode, pinned, slot_bytes, readers }));
            }
        }
    }
    arms
}

#[track_caller]
fn check(model: &Model) {
    let expected = model.expected();
    let plan = model.plan();
    let own = plan.tensors.iter().filter(|t| t.same_as.is_none()).count();
    for arm in arms(&[1 << 10, 8 << 10, 64 << 10, 4 << 20], &[1, 4]) {
        let fake = FakeBackend::new(FakeOptions::default());
        let loaded = load_on(&fake, model, arm).unwrap();
        for (index, tensor) in plan.tensors.iter().enumerate() {
            assert!(loaded.planes[index] == expected[index], "{arm:?}: {}", tensor.request.name);
        }
        let stats = loaded.stats;
        let by_path = if arm.pinned { (own, 0) } else { (0, own) };
        assert_eq!((stats.pinned_tensors, stats.pageable_tensors), by_path, "{arm:?}");
        assert_eq!((stats.direct_tensors, stats.cross_stream_waits), (0, 0));
        assert_eq!(stats.copies, fake.calls(if arm.pinned { Call::Copy } else { Call::Upload }), "{arm:?}");
        assert_eq!(stats.pinned_peak, fake.pinned_peak() as u64);
        assert!(fake.pinned_peak() <= if arm.pinned { 4 * arm.slot_bytes } else { 0 }, "{arm:?}");
        assert_eq!(stats.timed_bytes, if arm.mode == LoadMode::Eager { stats.copied_bytes } else { 0 });
        assert!(stats.copied_bytes >= stats.bytes && stats.arena_bytes >= plan.device_bytes);
        assert_eq!((fake.live(), fake.faults()), (0, vec![]), "{arm:?}");
    }
}

#[test]
fn four_arms_of_safetensors() {
    check(&plain());
}

#[test]
fn four_arms_of_mlx() {
    check(&mlx());
}

#[test]
fn four_arms_of_gguf() {
    check(&gguf());
}

const EAGER: Arm = Arm { mode: LoadMode::Eager, pinned: true, slot_bytes: 8 << 10, readers: 1 };

#[test]
fn a_slot_refilled_too_early_is_seen() {
    // The device says of every event that it is complete, so slots are filled while their copies are still to run.
    let model = plain();
    let fake = FakeBackend::new(FakeOptions { events_lie: true, ..Default::default() });
    let loaded = load_on(&fake, &model, EAGER).unwrap();
    assert!(loaded.planes != model.expected(), "the fake device must show the fault");
}

#[test]
fn comfyui_15001_neighbours_share_a_copy() {
    // Everything fits one slot and one chunk: one copy for all tensors, in each arm.
    let model = plain();
    for pinned in [true, false] {
        let fake = FakeBackend::new(FakeOptions::default());
        let arm = Arm { slot_bytes: 4 << 20, pinned, ..EAGER };
        let options = LoadOptions { chunk_bytes: 512 << 20, ..arm.options() };
        let device = fake.device();
        let mut loader = Loader::new(&model.checkpoint, &model.plan(), &device, &options).unwrap();
        loader.load_all(&device.stream().unwrap(), &mut |_, _| {}).unwrap();
        assert_eq!((loader.stats().copies, fake.calls(Call::Alloc)), (1, 1));
    }
}

#[test]
fn a_second_load_uses_the_same_slots() {
    let model = plain();
    let fake = FakeBackend::new(FakeOptions::default());
    let device = fake.device();
    let stream = device.stream().unwrap();
    for _ in 0..3 {
        let options = EAGER.options();
        let mut loader = Loader::new(&model.checkpoint, &model.plan(), &device, &options).unwrap();
        loader.load_all(&stream, &mut |_, _| {}).unwrap();
        drop(loader);
        assert_eq!((fake.calls(Call::Pin), fake.bytes_of(MemoryKind::Device)), (4, 0));
    }
    drop((stream, device));
    assert_eq!((fake.live(), fake.faults()), (0, vec![]));
}

#[test]
fn two_loads_to_one_device_take_turns() {
    let model = plain();
    let expected = model.expected();
    let fake = FakeBackend::new(FakeOptions::default());
    let device = fake.device();
    std::thread::scope(|scope| {
        for mode in [LoadMode::Eager, LoadMode::Lazy, LoadMode::Eager] {
            let (device, fake, model, expected) = (&device, &fake, &model, &expected);
            scope.spawn(move || {
                let stream = device.stream().unwrap();
                let arm = Arm { mode, readers: 2, ..EAGER };
                let mut loader =
                    Loader::new(&model.checkpoint, &model.plan(), device, &arm.options()).unwrap();
                let weights = loader.weights().unwrap();
                for index in (0..weights.len()).filter(|_| mode == LoadMode::Lazy) {
                    loader.load_one(index, &stream).unwrap();
                }
                loader.load_all(&stream, &mut |_, _| {}).unwrap();
                stream.synchronize().unwrap();
                let planes = weights.iter().map(|w| w.planes.iter().map(|p| fake.bytes(p)).collect());
                assert!(planes.collect::<Vec<Vec<_>>>() == *expected);
            });
        }
    });
    assert!(fake.pinned_peak() <= 4 * EAGER.slot_bytes && fake.calls(Call::Pin) <= 4);
    drop(device);
    assert_eq!((fake.live(), fake.faults()), (0, vec![]));
}

#[test]
fn lazy_on_memory_that_the_host_sees() {
    let model = plain();
    let device = cpu();
    let stream = device.stream().unwrap();
    let plan = model.plan();
    let mut loader = Loader::new(&model.checkpoint, &plan, &device, &LoadOptions::default()).unwrap();
    let weights = loader.weights().unwrap();
    assert_eq!((loader.resident_bytes(), loader.stats().reads), (0, 0));
    for index in (0..weights.len()).rev() {
        let known = loader.is_resident(index);
        assert_eq!(loader.load_one(index, &stream).unwrap(), !known);
        assert!(!loader.load_one(index, &stream).unwrap());
    }
    assert!(loader.is_all_resident());
    assert_eq!((loader.stats().copies, loader.stats().pinned_tensors), (0, 0));
    drop(loader);
    let planes: Vec<_> = take_planes(weights).into_iter().map(|l| l.planes).collect();
    assert!(planes == model.expected());
}

#[test]
fn some_lazily_then_the_rest_at_once() {
    let model = plain();
    let fake = FakeBackend::new(FakeOptions::default());
    let device = fake.device();
    let stream = device.stream().unwrap();
    let mut loader = Loader::new(&model.checkpoint, &model.plan(), &device, &EAGER.options()).unwrap();
    // `head` is the same as `embed`, weight 0.
    assert!(loader.load_one(2, &stream).unwrap() && loader.is_resident(0));
    loader.load_all(&stream, &mut |_, _| {}).unwrap();
    let planes = loader.weights().unwrap();
    let planes: Vec<Vec<_>> =
        planes.iter().map(|w| w.planes.iter().map(|p| fake.bytes(p)).collect()).collect();
    assert!(planes == model.expected());
    assert_eq!(DType::F32.size() * 77 * 64, planes[0][0].len());
    assert!(loader.load_one(99, &stream).unwrap_err().to_string().contains("99"));
}

#[test]
fn a_gpu_has_two_pools() {
    let model = plain();
    let load = model.plan();
    let fake = FakeBackend::new(FakeOptions::default());
    let items = |device: &Device, options: &LoadOptions| {
        let (mut plan, pools) = MemoryPlan::of_device(device).unwrap();
        plan.add_load(&load, device, pools, options).unwrap();
        let items = plan.items.iter().map(|i| (i.what.clone(), i.bytes, plan.pools[i.pool].name.clone()));
        items.collect::<Vec<_>>()
    };
    let item = |what: &str, bytes: u64, pool: &str| (what.to_owned(), bytes, pool.to_owned());
    // Small: one allocation is rounded up to 2 MiB, and one slot of 1 MiB is enough.
    let options = LoadOptions {
        staging: Some(StagingOptions::default()),
        chunk_bytes: 512 << 20,
        ..LoadOptions::default()
    };
    let expected = [
        item("weights", 2 << 20, "cuda:0 device"),
        item("staging (pinned)", 1 << 20, "host"),
        item("loading scratch", load.scratch_bytes, "host"),
    ];
    assert_eq!(items(&fake.device(), &options), expected);
    // Slots smaller than a tensor that cannot be cut: that one is made on the host.
    let arm = Arm { slot_bytes: 16 << 10, ..EAGER };
    let whole = load.tensors[6].device_bytes;
    let coarse = items(&fake.device(), &LoadOptions { chunk_bytes: 512 << 20, ..arm.options() });
    assert_eq!(coarse[1], item("staging (pinned)", 64 << 10, "host"));
    assert_eq!(coarse[2], item("loading scratch", load.scratch_bytes + whole, "host"));
    let expected =
        [item("weights", load.device_bytes, "host"), item("loading scratch", load.scratch_bytes, "host")];
    assert_eq!(items(&cpu(), &options), expected);
}

#[test]
fn load_modes_by_name() {
    for mode in [LoadMode::Eager, LoadMode::Lazy] {
        assert_eq!(mode.name().parse::<LoadMode>().unwrap(), mode);
    }
    assert!("Eager".parse::<LoadMode>().unwrap_err().to_string().contains("'Eager'"));
}
