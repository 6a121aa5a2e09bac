//! Planning and loading for an integrated AMD GPU, whose memory is the host's in several pools.

use std::{fs::File, io::Write, path::Path};

use portolan_device::{
    Device, DeviceError, MemoryInfo, MemoryKind, WorkingBytes, WorkingMemory,
    fake::{Call, FakeBackend},
    rocm::memory_sources::MemorySources,
};
use portolan_weights::{
    Checkpoint, Expr, LoadOptions, LoadPlan, Loader, MemoryPlan, WeightError, human_bytes, plan_load,
};

use crate::{
    staged::plain,
    support::{folder, request, take_planes},
};

const GIB: u64 = 1 << 30;

/// What the report's model takes beside its weights: 8 GiB of cache and 2 of workspace.
const WORKING: WorkingBytes =
    WorkingBytes { step: 1 << 20, scratch: 96 << 20, workspace: 2 * GIB, caches: 8 * GIB };

/// GiB of each pool: free, and in all.
struct Machine {
    runtime: [u64; 2],
    vram: Option<u64>,
    gtt: Option<u64>,
    host: [u64; 2],
    managed: bool,
}

/// The report's: 128 GiB, 512 MiB of which the firmware holds (0 here), and Linux lets the GPU map half.
const HALF_MAPPED: Machine =
    Machine { runtime: [62, 62], vram: Some(0), gtt: Some(62), host: [120, 125], managed: false };

impl Machine {
    fn fake(&self) -> FakeBackend {
        let info =
            |[free, total]: [u64; 2], source| MemoryInfo { free: free * GIB, total: total * GIB, source };
        let sources = MemorySources {
            runtime: Some(info(self.runtime, "hipMemGetInfo")),
            vram: self.vram.map(|gib| info([gib, gib], "mem_info_vram")),
            gtt: self.gtt.map(|gib| info([gib, gib], "mem_info_gtt")),
            host: info(self.host, "MemAvailable"),
        };
        FakeBackend::apu(sources, self.managed)
    }

    /// The plan of a model, with its working memory.
    fn plan(&self, load: &LoadPlan) -> (MemoryPlan, WorkingMemory) {
        let device = self.fake().device();
        let (mut plan, pools) = MemoryPlan::of_device(&device).unwrap();
        plan.add_load(load, &device, pools, &LoadOptions::default()).unwrap();
        let working = plan.working_memory(&device, pools, &WORKING);
        plan.add("cache", WORKING.caches, pools.of(working.caches));
        plan.add("workspace", WORKING.workspace, pools.of(working.workspace));
        plan.add("scratch", WORKING.scratch, pools.of(working.scratch));
        plan.add("step buffers", WORKING.step, pools.of(working.step));
        (plan, working)
    }
}

/// A file of `tensors` tensors of 517 MiB, which takes no room: it is one hole after its header.
fn sparse(path: &Path, tensors: usize) {
    const ROWS: usize = 66_160;
    let bytes = ROWS * 4096 * 2;
    let entry = |i: usize| {
        let (start, end) = (i * bytes, (i + 1) * bytes);
        format!(r#""w{i}":{{"dtype":"BF16","shape":[{ROWS},4096],"data_offsets":[{start},{end}]}}"#)
    };
    let header = format!("{{{}}}", (0..tensors).map(entry).collect::<Vec<_>>().join(","));
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len((8 + header.len() + tensors * bytes) as u64).unwrap();
}

/// The plan of a model of so many tensors. Its file is gone: nothing can be read any more.
fn load_plan(tensors: usize) -> LoadPlan {
    let dir = folder();
    let path = dir.path().join("m.safetensors");
    sparse(&path, tensors);
    let requests = (0..tensors).map(|i| request(&format!("w{i}"), Expr::source(format!("w{i}"))));
    plan_load(&Checkpoint::open(&path).unwrap(), requests.collect()).unwrap()
}

/// The report's model.
fn model_of_80_76_gib() -> LoadPlan {
    let plan = load_plan(160);
    assert_eq!(human_bytes(plan.device_bytes), "80.76 GiB");
    plan
}

#[track_caller]
fn says(text: &str, parts: &[&str], not: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no '{part}' in\n{text}");
    }
    for part in not {
        assert!(!text.contains(part), "'{part}' in\n{text}");
    }
}

const GTT_124: &str = "amdgpu.gttsize=126976 ttm.pages_limit=32505856 ttm.page_pool_size=32505856";

#[test]
fn ds4_475_a_model_larger_than_the_device_pool_loads_where_the_host_has_room() {
    let load = model_of_80_76_gib();
    for (managed, gtt) in [(true, 62), (false, 124), (true, 124)] {
        let (plan, working) = Machine { managed, gtt: Some(gtt), ..HALF_MAPPED }.plan(&load);
        plan.check().unwrap();
        // Weights may fill all that `hipMalloc` could have had, so nothing is left for it.
        assert_eq!((working.caches, working.step), (MemoryKind::Mapped, MemoryKind::Mapped));
        assert_eq!(plan.advice(), Vec::<String>::new());
        says(&plan.to_string(), &["rocm:0 mapped: 120.00 GiB available (MemAvailable)"], &["ttm"]);
    }
}

#[test]
fn ds4_475_what_the_gpu_cannot_map_is_refused_before_a_byte_is_read() {
    let (plan, _) = HALF_MAPPED.plan(&model_of_80_76_gib());
    let error = plan.check().unwrap_err();
    let WeightError::InsufficientMemory { pool, need, available, .. } = &error else { panic!("{error:?}") };
    assert_eq!((pool.as_str(), *available), ("rocm:0 mapped", 62 * GIB));
    assert!(*need > 90 * GIB && *need < 92 * GIB, "{need}");
    let text = error.to_string();
    let sources =
        ["hipMemGetInfo: 62.00 GiB free", "mem_info_gtt: 62.00", "MemAvailable: 120.00 GiB free of 125.00"];
    says(
        &text,
        &["rocm:0 mapped: 62.00 GiB available (mem_info_gtt)", "weights", "124 GiB of GTT", GTT_124],
        &["FORCE"],
    );
    says(&text, &sources, &["firmware"]);
}

#[test]
fn ds4_475_nothing_is_advised_that_would_not_hold_the_model() {
    let advice = |machine: Machine, tensors| machine.plan(&load_plan(tensors)).0.advice().join("\n");
    // 121 GiB of weights: no GTT holds them in a host that has 120 left.
    says(&advice(HALF_MAPPED, 240), &[], &["ttm"]);
    // The GPU may map all there is already: it is the host that is short.
    says(&advice(Machine { managed: true, host: [70, 125], ..HALF_MAPPED }, 160), &[], &["ttm"]);
    // 64 GiB are installed.
    let small = Machine { runtime: [31, 31], gtt: Some(31), host: [60, 62], ..HALF_MAPPED };
    says(&advice(small, 80), &["60 GiB of GTT", "amdgpu.gttsize=61440 ttm.pages_limit=15728640"], &["FORCE"]);
    // Where it fits there is nothing to say.
    says(&advice(HALF_MAPPED, 8), &[], &["would hold"]);
}

#[test]
fn ds4_475_what_the_firmware_holds_is_named() {
    let load = model_of_80_76_gib();
    // 96 GiB were set aside: the host has too little left, and the device's own pool enough.
    let aside = Machine { runtime: [96, 96], vram: Some(96), gtt: Some(15), host: [28, 31], managed: false };
    let (plan, working) = aside.plan(&load);
    assert_eq!(working.caches, MemoryKind::Device);
    says(
        &plan.check().unwrap_err().to_string(),
        &[
            "PORTOLAN_ROCM_FORCE_DEVICE_MEM=1 would hold it",
            "'rocm:0 device', which has 96.00 GiB",
            GTT_124,
            "(now 96.00 GiB)",
        ],
        &[],
    );
    // With 62 neither half holds it.
    let halves = Machine { runtime: [62, 62], vram: Some(62), gtt: Some(31), host: [60, 62], managed: true };
    let text = halves.plan(&load).0.check().unwrap_err().to_string();
    says(&text, &[GTT_124, "let the firmware set the least aside for the GPU (now 62.00 GiB)"], &["FORCE"]);
}

#[test]
fn rocm_5444_every_pool_has_its_own_budget() {
    // Pool, where the caches go, and what is counted in the device's pool, the mapped one and the host's, in whole GiB.
    #[track_caller]
    fn check(machine: &Machine, tensors: usize, caches: MemoryKind, expected: [u64; 3]) {
        let (plan, working) = machine.plan(&load_plan(tensors));
        assert_eq!(working.caches, caches, "{plan}");
        assert_eq!([0, 1, 2].map(|pool| plan.need(pool) / GIB), expected, "{plan}");
        // Each source is told, and none is added to another.
        assert_eq!(plan.sources.len(), 4);
        assert_eq!(plan.pools[0].available, machine.runtime[0] * GIB);
    }
    // 4 GiB are set aside and the runtime speaks of them alone: the caches do not fit there, the workspace does.
    let four = Machine { runtime: [4, 4], vram: Some(4), gtt: Some(96), host: [115, 121], managed: false };
    check(&four, 40, MemoryKind::Mapped, [2, 28, 28]);
    // Nothing to speak of is set aside: the runtime's pool is the host's memory, and is counted there as well.
    check(&HALF_MAPPED, 40, MemoryKind::Device, [10, 30, 30]);
    // 62 GiB are set aside: what is taken of them is not the host's.
    let halves = Machine { runtime: [62, 62], vram: Some(62), gtt: Some(31), host: [60, 62], managed: true };
    check(&halves, 40, MemoryKind::Device, [10, 20, 20]);
}

#[test]
fn rocm_5444_the_plan_names_every_pool_and_source() {
    let (plan, _) = HALF_MAPPED.plan(&load_plan(2));
    let names = ["rocm:0 device: 62.00", "rocm:0 mapped: 62.00", "host: 120.00"];
    let text = plan.to_string();
    says(&text, &names, &["would hold"]);
    says(&text, &["mem_info_vram: 0 B free of 0 B", "mem_info_gtt: 62.00 GiB free of 62.00 GiB"], &[]);
    // What lies within a pool is a line of it.
    assert_eq!(text.lines().filter(|line| line.starts_with("  rocm:0 ")).count(), 2, "{text}");
}

#[test]
fn llama_cpp_15018_an_apu_reads_files_into_place_and_copies_nothing() {
    let model = plain();
    let fake = Machine { managed: true, ..HALF_MAPPED }.fake();
    let device = fake.device();
    let stream = device.stream().unwrap();
    let load = model.plan();
    let mut loader = Loader::new(&model.checkpoint, &load, &device, &LoadOptions::default()).unwrap();
    loader.load_all(&stream, &mut |_, _| {}).unwrap();
    assert_eq!((fake.calls(Call::Copy), fake.calls(Call::Upload)), (0, 0));
    let bytes_of = |kind| fake.bytes_of(kind) as u64;
    assert!(bytes_of(MemoryKind::Mapped) >= load.device_bytes);
    assert_eq!(bytes_of(MemoryKind::Device) + bytes_of(MemoryKind::Pinned), 0);
    let weights = loader.weights().unwrap();
    drop(loader);
    let loaded: Vec<_> = take_planes(weights).into_iter().map(|l| l.planes).collect();
    // The memory began with what its last user left; the gaps of a layout are zero all the same.
    assert!(loaded == model.expected());
    drop((stream, device));
    assert_eq!((fake.live(), fake.faults()), (0, vec![]));
}

#[test]
fn ds4_475_an_arena_names_the_tensor_that_finds_no_place() {
    let model = plain();
    let load = model.plan();
    // Room for half of the model.
    let left = MemoryInfo { free: load.device_bytes / 2, total: GIB, source: "MemAvailable" };
    let sources = MemorySources { runtime: Some(left), vram: None, gtt: None, host: left };
    let fake = FakeBackend::apu(sources, true);
    let options = LoadOptions { chunk_bytes: 4096, ..LoadOptions::default() };
    let error = Loader::new(&model.checkpoint, &load, &fake.device(), &options).map(drop).unwrap_err();
    let WeightError::Device(DeviceError::NoRoom { tensor, pool, .. }) = &error else { panic!("{error:?}") };
    assert_eq!((*pool, tensor.is_empty()), ("mapped", false));
    assert_eq!(fake.live(), 0);
}

#[test]
fn a_card_with_memory_of_its_own_has_no_advice() {
    let fake =
        FakeBackend::new(portolan_device::fake::FakeOptions { device_bytes: 1 << 20, ..Default::default() });
    let device: Device = fake.device();
    let (mut plan, pools) = MemoryPlan::of_device(&device).unwrap();
    plan.add("weights", GIB, pools.of(MemoryKind::Device));
    says(&plan.check().unwrap_err().to_string(), &["cuda:0 device"], &["ttm", "FORCE"]);
}
