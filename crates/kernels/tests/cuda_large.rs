//! Indices past 2^31 elements, on an NVIDIA GPU with the memory for them: a case at the far end of large buffers must
//! give the bytes that it gives in small ones.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use portolan_device::{DType, Device, MemoryKind, Slice, Stream};
use portolan_kernels::{
    CacheKind, GpuPrograms, Launch, OpKind, StepShape, View, chart,
    conformance::{Target, cases, host::Case, place::Placer, run_variant},
    row_bytes,
};
use portolan_testkit::skipped;
use portolan_weights::Layout;

/// More elements than an i32 counts.
const ELEMENTS: usize = (1 << 31) + (1 << 24);

/// A large launch, its step, and how many bytes of each output's end to compare, if not all that the small one has.
type Enlarged = (Launch, StepShape, Option<usize>);

struct Large {
    device: Device,
    placer: Placer,
    programs: GpuPrograms,
}

impl Large {
    fn stream(&self) -> &Stream {
        self.placer.stream()
    }

    /// A zeroed buffer that ends with the bytes of a small one.
    fn ending_with(&self, small: &Slice, bytes: usize) -> Slice {
        let large = self.device.alloc(bytes, MemoryKind::Device).unwrap().whole();
        let end = large.slice(bytes - small.len(), small.len()).unwrap();
        // SAFETY: the buffer is new, and the small one is only read, on the same stream.
        unsafe {
            self.stream().fill(&large, 0).unwrap();
            self.stream().copy(&end, small).unwrap();
        }
        large
    }

    fn read(&self, slice: &Slice) -> Vec<u8> {
        let mut bytes = vec![0; slice.len()];
        // SAFETY: what writes the slice came before on this stream.
        unsafe { self.stream().download(&mut bytes, slice).unwrap() };
        bytes
    }

    /// The last bytes of the outputs, as many as the small launch has, and of the cache.
    fn run(
        &self,
        variant: &chart::Variant,
        launch: &Launch,
        shape: StepShape,
        ends: &[usize],
    ) -> Vec<Vec<u8>> {
        let target =
            Target { device: &self.device, team: None, stream: self.stream(), programs: &self.programs };
        let mut launch = launch.clone();
        run_variant(variant, &mut launch, shape, &target).unwrap();
        let outputs = launch.outputs.iter().map(|y| y.slice.clone());
        let cache = launch.cache.iter().flat_map(|c| [c.k.clone(), c.v.clone()]);
        let end =
            |(slice, &bytes): (Slice, &usize)| self.read(&slice.slice(slice.len() - bytes, bytes).unwrap());
        outputs.chain(cache).zip(ends).map(end).collect()
    }
}

fn ends(launch: &Launch) -> Vec<usize> {
    let cache = launch.cache.iter().flat_map(|c| [c.k.len(), c.v.len()]);
    launch.outputs.iter().map(|y| y.slice.len()).chain(cache).collect()
}

/// Rows before the case's own, so that the widest value has more elements than an i32 counts.
fn with_many_rows(large: &Large, small: &Launch, shape: StepShape) -> (Launch, StepShape) {
    let widest = small.inputs.iter().chain(&small.outputs).map(|v| v.cols).max().unwrap_or(1);
    let rows = ELEMENTS.div_ceil(widest) + shape.rows;
    let grow = |view: &View| {
        let bytes = rows * row_bytes(view.dtype, view.cols, small.activation);
        View { slice: large.ending_with(&view.slice, bytes), ..view.clone() }
    };
    let mut launch = small.clone();
    launch.inputs = small.inputs.iter().map(grow).collect();
    launch.outputs = small.outputs.iter().map(grow).collect();
    let mut step = (*small.step).clone();
    step.positions = large.ending_with(&small.step.positions, rows * 4);
    step.row_seq = large.ending_with(&small.step.row_seq, rows * 4);
    step.ids = large.ending_with(&small.step.ids, rows * 4);
    step.max_rows = rows;
    launch.step = std::sync::Arc::new(step);
    (launch, StepShape { rows, selected: if shape.selected > 0 { rows } else { 0 }, ..shape })
}

/// Pages before the case's own, which the page table then names.
fn with_many_pages(large: &Large, small: &Launch) -> Launch {
    let mut launch = small.clone();
    let cache = launch.cache.as_mut().unwrap();
    let CacheKind::Paged { kv_heads, k_dim, v_dim, .. } = cache.kind else { panic!("pages") };
    let page = kv_heads * 32 * k_dim.min(v_dim);
    let before = ELEMENTS.div_ceil(page);
    let bytes = |dim: usize, pages: usize| pages * kv_heads * 32 * dim * cache.dtype.size();
    cache.k = large.ending_with(&cache.k, bytes(k_dim, before + cache.pages));
    cache.v = large.ending_with(&cache.v, bytes(v_dim, before + cache.pages));
    cache.pages += before;
    let table = large.read(&small.step.page_table);
    let entries = table.chunks(4).map(|b| i32::from_le_bytes(b.try_into().unwrap()));
    let moved: Vec<u8> = entries
        .flat_map(|page| {
            (if (0..i32::MAX).contains(&page) { page + before as i32 } else { page }).to_le_bytes()
        })
        .collect();
    let mut step = (*small.step).clone();
    step.page_table = large.placer.upload(&moved).unwrap();
    launch.step = std::sync::Arc::new(step);
    launch
}

/// Rows of the table or matrix before the case's own. Gives how many.
fn with_many_weights(large: &Large, small: &Launch) -> (Launch, usize) {
    let mut launch = small.clone();
    let weight = &mut launch.weights[0];
    let (n, k) = (weight.shape[0], weight.shape[1]);
    let before = ELEMENTS.div_ceil(k);
    for plane in &mut weight.planes {
        let row = plane.len() / n;
        *plane = large.ending_with(plane, (n + before) * row);
    }
    weight.shape[0] += before;
    (launch, before)
}

/// A case of an op with at least so many rows and columns that it is worth the memory.
fn case_of(op: OpKind, activation: DType, wanted: impl Fn(&Case) -> bool) -> Case {
    let wide = |c: &Case| c.inputs.iter().map(|x| x.info.cols).chain(c.outputs.iter().map(|y| y.cols)).max();
    let fits =
        |c: &Case| c.rows() > 0 && c.shape.rows <= 33 && wide(c).is_some_and(|cols| cols >= 8) && wanted(c);
    let found = cases::of(op).into_iter().filter(fits).max_by_key(|c| wide(c));
    found.unwrap_or_else(|| panic!("no case of {op}")).rounded(activation)
}

#[test]
fn a_case_at_the_end_of_large_buffers_gives_its_own_bytes() {
    let device = match Device::cuda(0) {
        Ok(device) => device,
        Err(error) => return skipped(&error.to_string()),
    };
    if device.memory_info().unwrap().free < 60 << 30 {
        return skipped("this takes 60 GB of device memory");
    }
    let activation = DType::BF16;
    let placer = Placer::new(&device, activation).unwrap();
    let large = Large { placer, programs: GpuPrograms::new(&device), device };
    let mut checked = 0;
    let mut check = |op: OpKind, case: &Case, what: &str, make: &dyn Fn(&Launch) -> Enlarged| {
        let small = large.placer.place(case, Layout::Planes).unwrap().launch;
        let weights = portolan_kernels::conformance::place::weight_specs(case, Layout::Planes);
        let spec = case.spec(&weights, activation);
        let (launch, shape, tail) = make(&small);
        let rows = launch.outputs.first().map_or(shape.rows, |y| shape.of(y.rows));
        for variant in chart::slot(op, large.device.caps().kind()) {
            let serves = |rows| (variant.rows.0..=variant.rows.1).contains(&rows);
            if (variant.takes)(&spec, large.device.caps()).is_err() || !serves(case.rows()) || !serves(rows) {
                continue;
            }
            let mut ends = ends(&small);
            if let Some(bytes) = tail {
                ends = vec![bytes; ends.len()];
            }
            let expected = large.run(variant, &small, case.shape, &ends);
            let found = large.run(variant, &launch, shape, &ends);
            assert!(found == expected, "{op} {} with {what}: {}", variant.name, case.name);
            println!("{op} {} with {what}: {}", variant.name, case.name);
            checked += 1;
        }
    };
    for op in [
        OpKind::Add,
        OpKind::Mul,
        OpKind::Activate,
        OpKind::RmsNorm,
        OpKind::AddRmsNorm,
        OpKind::Rope,
        OpKind::RopeTable,
        OpKind::Argmax,
    ] {
        let case = case_of(op, activation, |c| c.shape.selected == 0 || op == OpKind::Argmax);
        check(op, &case, "many rows", &|small| {
            let (launch, shape) = with_many_rows(&large, small, case.shape);
            (launch, shape, None)
        });
    }
    for op in [OpKind::CacheAppend, OpKind::RopeAppend, OpKind::Attention] {
        let case = case_of(op, activation, |c| c.cache.as_ref().is_some_and(|c| c.dtype == DType::F16));
        check(op, &case, "many pages", &|small| (with_many_pages(&large, small), case.shape, None));
    }
    for encoding in ["bf16", "affine4-g64-bf16"] {
        let of = |c: &Case| {
            c.weights.len() == 1 && c.weights[0].encoding.to_string() == encoding && c.weights[0].rows() > 1
        };
        let case = case_of(OpKind::Embed, activation, of);
        // The same rows of the table, by their new numbers, in the large one; so the ids are moved with them.
        let before = ELEMENTS.div_ceil(case.weights[0].cols()) as i32;
        check(OpKind::Embed, &case, "a large table", &|small| {
            let (mut launch, _) = with_many_weights(&large, small);
            let moved: Vec<u8> = case.step.ids.iter().flat_map(|id| (id + before).to_le_bytes()).collect();
            let mut step = (*small.step).clone();
            step.ids = large.placer.upload(&moved).unwrap();
            launch.step = std::sync::Arc::new(step);
            (launch, case.shape, None)
        });
        for wanted in [1, 2, 3, 5, 17] {
            let case =
                case_of(OpKind::Matmul, activation, |c| of(c) && c.rows() == wanted && c.shape.selected == 0);
            let n = case.weights[0].rows();
            check(OpKind::Matmul, &case, "a large matrix", &|small| {
                let (mut launch, before) = with_many_weights(&large, small);
                let y = &small.outputs[0];
                let row = row_bytes(y.dtype, y.cols + before, activation);
                let slice = large.device.alloc(case.rows() * row, MemoryKind::Device).unwrap().whole();
                launch.outputs[0] = View { slice, cols: y.cols + before, ..y.clone() };
                // The last row's last columns are the small one's last row.
                (launch, case.shape, Some(row_bytes(y.dtype, n, activation)))
            });
        }
    }
    assert!(checked >= 15, "{checked} variants");
}
