//! The check of a launch when a program is built, so that its kernel cannot fail when it runs.

use portolan_device::{DType, DeviceCaps, DeviceKind, Slice};
use portolan_weights::{Layout, WeightTensor};

use crate::{
    CacheKind, CacheView, KernelError, Launch, Op, OpKind, PAGE_TOKENS, Result, RowSet, ValueType, View,
    chart, row_bytes,
};

impl Launch {
    /// Checks everything that a kernel counts on: numbers, shapes and types of what it reads and writes, the room
    /// in every buffer for the largest step ([`crate::StepBuffers::max_shape`]), alignment, that nothing
    /// overlaps an output, and on the CPU that the host sees it all.
    ///
    /// What [`crate::StepBuffers`] will hold is not known yet; that a step fits is [`crate::StepBuffers::holds`].
    ///
    /// # Errors
    /// [`KernelError::Shape`], [`KernelError::Type`], [`KernelError::Overlap`] or [`KernelError::NotHostMemory`],
    /// each with scope and op: a fault of the planner.
    pub fn check(&self, caps: &DeviceCaps) -> Result<()> {
        let check = Check { launch: self, kind: self.op.kind(), caps };
        check.counts()?;
        check.shapes()?;
        check.memory()?;
        check.overlap()
    }
}

/// What an op reads and writes: inputs, fewest and most weights, caches, outputs.
fn counts(op: OpKind) -> (usize, (usize, usize), usize, usize) {
    match op {
        OpKind::Embed => (0, (1, 1), 0, 1),
        OpKind::RmsNorm => (1, (1, 1), 0, 1),
        OpKind::Matmul => (1, (1, 2), 0, 1),
        OpKind::RopeTable => (0, (0, 0), 0, 1),
        OpKind::Rope => (2, (0, 0), 0, 1),
        OpKind::CacheAppend => (2, (0, 0), 1, 0),
        OpKind::Attention => (1, (0, 0), 1, 1),
        OpKind::Add | OpKind::Mul => (2, (0, 0), 0, 1),
        OpKind::Activate | OpKind::SelectRows | OpKind::QuantizeRows | OpKind::Argmax => (1, (0, 0), 0, 1),
        OpKind::AddRmsNorm => (2, (1, 1), 0, 2),
        OpKind::GateUp => (1, (2, 2), 0, 1),
        OpKind::RopeAppend => (4, (0, 0), 1, 1),
        OpKind::Qkv => (1, (3, 6), 0, 3),
        OpKind::NormRopeAppend => (4, (2, 2), 1, 1),
    }
}

/// `[dtype::Activation, F32]`: what an op of floats reads and writes.
const FLOATS: &[ValueType] = &[ValueType::Activation, ValueType::F32];
/// What a matmul reads.
const FLOATS_OR_INTEGERS: &[ValueType] =
    &[ValueType::Activation, ValueType::F32, ValueType::Q8Rows, ValueType::Q15Rows];

struct Check<'a> {
    launch: &'a Launch,
    kind: OpKind,
    caps: &'a DeviceCaps,
}

impl Check<'_> {
    fn shape(&self, what: &'static str, found: usize, expected: usize) -> Result<()> {
        if found == expected {
            return Ok(());
        }
        Err(KernelError::Shape { scope: self.launch.scope.clone(), op: self.kind, what, found, expected })
    }

    /// As [`Check::shape`], where more is no harm.
    fn room(&self, what: &'static str, found: usize, needed: usize) -> Result<()> {
        self.shape(what, found.min(needed), needed)
    }

    fn types(&self, what: &'static str, found: String, expected: String) -> Result<()> {
        if found == expected {
            return Ok(());
        }
        Err(KernelError::Type { scope: self.launch.scope.clone(), op: self.kind, what, found, expected })
    }

    fn counts(&self) -> Result<()> {
        let (inputs, (fewest, most), caches, outputs) = counts(self.kind);
        let weights = self.launch.weights.len();
        self.shape("number of inputs", self.launch.inputs.len(), inputs)?;
        self.shape("number of weights", weights, weights.clamp(fewest, most))?;
        self.shape("number of caches", usize::from(self.launch.cache.is_some()), caches)?;
        self.shape("number of outputs", self.launch.outputs.len(), outputs)
    }

    fn value(
        &self,
        what: &'static str,
        view: &View,
        rows: RowSet,
        cols: usize,
        types: &[ValueType],
    ) -> Result<()> {
        self.shape(what, view.cols, cols)?;
        self.types(what, format!("rows of {:?}", view.rows), format!("rows of {rows:?}"))?;
        let fits = types.contains(&view.dtype);
        let found = if fits { format!("{types:?}") } else { format!("{:?}", view.dtype) };
        self.types(what, found, format!("{types:?}"))
    }

    fn input(&self, i: usize, rows: RowSet, cols: usize, types: &[ValueType]) -> Result<()> {
        const WHAT: [&str; 4] = ["input 0", "input 1", "input 2", "input 3"];
        self.value(WHAT[i], &self.launch.inputs[i], rows, cols, types)
    }

    fn output(&self, i: usize, rows: RowSet, cols: usize, types: &[ValueType]) -> Result<()> {
        const WHAT: [&str; 3] = ["output 0", "output 1", "output 2"];
        self.value(WHAT[i], &self.launch.outputs[i], rows, cols, types)
    }

    fn weight(&self, i: usize, shape: &[usize]) -> Result<()> {
        const WHAT: [&str; 6] = [
            "shape of weight 0",
            "shape of weight 1",
            "shape of weight 2",
            "shape of weight 3",
            "shape of weight 4",
            "shape of weight 5",
        ];
        let found = &self.launch.weights[i].shape;
        self.types(WHAT[i], format!("{found:?}"), format!("{shape:?}"))
    }

    /// `(kv_heads, k_dim, v_dim)` and the window of a cache of pages.
    fn pages(&self) -> Result<([usize; 3], Option<usize>)> {
        match self.launch.cache.as_ref().map(|c| c.kind) {
            Some(CacheKind::Paged { kv_heads, k_dim, v_dim, window }) => {
                Ok(([kv_heads, k_dim, v_dim], window))
            }
            other => Err(KernelError::Type {
                scope: self.launch.scope.clone(),
                op: self.kind,
                what: "the cache",
                found: format!("{other:?}"),
                expected: "pages of keys and values".to_owned(),
            }),
        }
    }

    fn shapes(&self) -> Result<()> {
        let launch = self.launch;
        let tokens = RowSet::Tokens;
        // Most ops keep the rows and columns of the first input.
        let (rows, cols) = launch.inputs.first().map_or((tokens, 0), |x| (x.rows, x.cols));
        let out_cols = launch.outputs.first().map_or(0, |y| y.cols);
        match &launch.op {
            Op::Embed => {
                let vocab = launch.weights[0].shape.first().copied().unwrap_or(0);
                self.weight(0, &[vocab, out_cols])?;
                self.output(0, tokens, out_cols, FLOATS)
            }
            Op::RmsNorm { width, .. } => {
                self.weight(0, &[*width])?;
                self.shape("columns that do not make whole norms", cols % (*width).max(1), 0)?;
                self.shape("width of a norm", *width, (*width).max(1))?;
                self.input(0, rows, cols, FLOATS)?;
                self.output(0, rows, cols, FLOATS)
            }
            Op::Matmul => {
                self.weight(0, &[out_cols, cols])?;
                if launch.weights.len() > 1 {
                    self.weight(1, &[out_cols])?;
                }
                self.shape("columns of input 0", cols, cols.max(1))?;
                self.input(0, rows, cols, FLOATS_OR_INTEGERS)?;
                self.output(0, rows, out_cols, FLOATS)
            }
            Op::RopeTable { rope } => self.output(0, tokens, rope.rot(), &[ValueType::F32]),
            Op::Rope { heads, head_dim, rot, .. } => {
                self.rope(*head_dim, *rot)?;
                self.input(0, tokens, heads * head_dim, FLOATS)?;
                self.input(1, tokens, *rot, &[ValueType::F32])?;
                self.output(0, tokens, cols, FLOATS)
            }
            Op::CacheAppend => {
                let ([kv_heads, k_dim, v_dim], _) = self.pages()?;
                self.input(0, tokens, kv_heads * k_dim, FLOATS)?;
                self.input(1, tokens, kv_heads * v_dim, FLOATS)
            }
            Op::Attention { heads, window, .. } => {
                let ([kv_heads, k_dim, v_dim], kept) = self.pages()?;
                self.shape("heads that share no kv head", *heads % kv_heads.max(1), 0)?;
                self.shape("number of kv heads", kv_heads, kv_heads.max(1))?;
                if let Some(window) = *window {
                    self.shape("window", window, window.clamp(1, kept.unwrap_or(window).max(1)))?;
                } else {
                    self.shape("window of the cache (the op has none)", kept.unwrap_or(0), 0)?;
                }
                self.input(0, tokens, heads * k_dim, FLOATS)?;
                self.output(0, tokens, heads * v_dim, FLOATS)
            }
            Op::Activate(_) => {
                self.input(0, rows, cols, FLOATS)?;
                self.output(0, rows, cols, FLOATS)
            }
            Op::Add | Op::Mul => {
                self.input(0, rows, cols, FLOATS)?;
                self.input(1, rows, cols, FLOATS)?;
                self.output(0, rows, cols, FLOATS)
            }
            Op::SelectRows => {
                self.input(0, tokens, cols, FLOATS)?;
                self.output(0, RowSet::Selected, cols, FLOATS)
            }
            Op::QuantizeRows(codes) => {
                self.input(0, rows, cols, FLOATS)?;
                self.output(0, rows, cols, &[codes.value_type()])
            }
            Op::Argmax => {
                self.input(0, rows, cols, FLOATS)?;
                self.output(0, rows, 1, &[ValueType::I32])
            }
            Op::AddRmsNorm { .. } => {
                self.weight(0, &[cols])?;
                self.input(0, rows, cols, FLOATS)?;
                self.input(1, rows, cols, FLOATS)?;
                self.output(0, rows, cols, FLOATS)?;
                self.output(1, rows, cols, FLOATS)
            }
            Op::GateUp(_) => {
                self.weight(0, &[out_cols, cols])?;
                self.weight(1, &[out_cols, cols])?;
                self.shape("columns of input 0", cols, cols.max(1))?;
                self.input(0, rows, cols, FLOATS_OR_INTEGERS)?;
                self.output(0, rows, out_cols, FLOATS)
            }
            Op::Qkv => {
                self.shape("columns of input 0", cols, cols.max(1))?;
                self.input(0, rows, cols, FLOATS)?;
                // Biases come for all or for none.
                let weights = launch.weights.len();
                self.shape("number of weights", weights, if weights > 3 { 6 } else { 3 })?;
                for (i, y) in launch.outputs.iter().enumerate() {
                    self.weight(i, &[y.cols, cols])?;
                    if weights > 3 {
                        self.weight(i + 3, &[y.cols])?;
                    }
                    // One kernel writes them all.
                    let types = if i == 0 { FLOATS } else { std::slice::from_ref(&launch.outputs[0].dtype) };
                    self.output(i, rows, y.cols, types)?;
                }
                Ok(())
            }
            Op::RopeAppend { heads, rot, .. } | Op::NormRopeAppend { heads, rot, .. } => {
                let ([kv_heads, k_dim, v_dim], _) = self.pages()?;
                if self.kind == OpKind::NormRopeAppend {
                    self.shape("width of a norm", k_dim, k_dim.max(1))?;
                    self.weight(0, &[k_dim])?;
                    self.weight(1, &[k_dim])?;
                }
                self.rope(k_dim, *rot)?;
                self.input(0, tokens, heads * k_dim, FLOATS)?;
                self.input(1, tokens, kv_heads * k_dim, FLOATS)?;
                self.input(2, tokens, kv_heads * v_dim, FLOATS)?;
                self.input(3, tokens, *rot, &[ValueType::F32])?;
                self.output(0, tokens, heads * k_dim, FLOATS)
            }
        }
    }

    fn rope(&self, head_dim: usize, rot: usize) -> Result<()> {
        self.shape("rotated elements that make no pair", rot % 2, 0)?;
        self.shape("rotated elements of a head", rot, rot.min(head_dim))
    }

    fn memory(&self) -> Result<()> {
        let launch = self.launch;
        let activation = launch.activation;
        let max = launch.step.max_shape();
        for view in launch.inputs.iter().chain(&launch.outputs) {
            let bytes = max.of(view.rows).saturating_mul(row_bytes(view.dtype, view.cols, activation));
            let element = if view.dtype == ValueType::Activation { activation.size() } else { 4 };
            self.slice("bytes of a value", &view.slice, bytes, element)?;
        }
        launch.weights.iter().try_for_each(|w| self.planes(w))?;
        if let Some(cache) = &launch.cache {
            self.cache(cache)?;
        }
        let step = &launch.step;
        let [ids, positions, sequences, select] = self.reads();
        let rows = max.rows * size_of::<i32>();
        let table = max.seqs.saturating_mul(step.max_pages).saturating_mul(size_of::<i32>());
        for (what, wanted, slice, bytes) in [
            ("bytes of the token ids", ids, &step.ids, rows),
            ("bytes of the positions", positions, &step.positions, rows),
            ("bytes of the rows' sequences", sequences, &step.row_seq, rows),
            ("bytes of the page table", sequences, &step.page_table, table),
            ("bytes of the selected rows", select, &step.select, 0),
        ] {
            if wanted {
                self.slice(what, slice, bytes, size_of::<i32>())?;
            }
        }
        Ok(())
    }

    /// Whether the op reads token ids, positions, page tables, selected rows.
    fn reads(&self) -> [bool; 4] {
        match self.kind {
            OpKind::Embed => [true, false, false, false],
            OpKind::RopeTable => [false, true, false, false],
            OpKind::CacheAppend | OpKind::Attention | OpKind::RopeAppend | OpKind::NormRopeAppend => {
                [false, true, true, false]
            }
            OpKind::SelectRows => [false, false, false, true],
            _ => [false; 4],
        }
    }

    fn slice(&self, what: &'static str, slice: &Slice, bytes: usize, element: usize) -> Result<()> {
        self.room(what, slice.len(), bytes)?;
        self.shape("misalignment of a buffer", (slice.device_addr() % element as u64) as usize, 0)?;
        let device = slice.buffer().device();
        self.types("the device of a buffer", device.to_string(), self.caps.id.to_string())?;
        if self.caps.kind() == DeviceKind::Cpu && slice.host_ptr().is_none() {
            return Err(KernelError::NotHostMemory { scope: self.launch.scope.clone(), op: self.kind });
        }
        Ok(())
    }

    fn planes(&self, weight: &WeightTensor) -> Result<()> {
        let k = weight.shape.last().copied().unwrap_or(1);
        let rows = weight.shape.iter().rev().skip(1).product::<usize>();
        let encoding = weight.encoding;
        let left_over = k % encoding.row_multiple();
        self.shape("columns of a weight that make no whole group", left_over, 0)?;
        let bytes: Vec<usize> = match chart::repack(weight.layout) {
            Some(repack) => repack.plane_bytes(encoding, rows, k),
            None => {
                let found = format!("{:?}", weight.layout);
                self.types("the layout of a weight", found, format!("{:?}", Layout::Planes))?;
                let plane = |&p| rows.saturating_mul(encoding.row_bytes(p, k));
                encoding.planes().iter().map(plane).collect()
            }
        };
        self.shape("number of planes of a weight", weight.planes.len(), bytes.len())?;
        for (plane, bytes) in weight.planes.iter().zip(bytes) {
            self.slice("bytes of a plane of a weight", plane, bytes, 1)?;
        }
        Ok(())
    }

    fn cache(&self, cache: &CacheView) -> Result<()> {
        let ([kv_heads, k_dim, v_dim], _) = self.pages()?;
        if !matches!(cache.dtype, DType::F32 | DType::F16 | DType::BF16) {
            self.types("the type of a cache", cache.dtype.to_string(), "f32, f16 or bf16".to_owned())?;
        }
        for (what, slice, dim) in
            [("bytes of the keys", &cache.k, k_dim), ("bytes of the values", &cache.v, v_dim)]
        {
            let elements =
                cache.pages.saturating_mul(kv_heads).saturating_mul(PAGE_TOKENS).saturating_mul(dim);
            self.slice(what, slice, elements.saturating_mul(cache.dtype.size()), cache.dtype.size())?;
        }
        Ok(())
    }

    fn overlap(&self) -> Result<()> {
        let launch = self.launch;
        let cache = launch.cache.as_ref().map(|c| [("the cache", &c.k), ("the cache", &c.v)]);
        let step = &launch.step;
        let others: Vec<(&'static str, &Slice)> = (launch.inputs.iter().map(|x| ("an input", &x.slice)))
            .chain(launch.weights.iter().flat_map(|w| w.planes.iter().map(|p| ("a weight", p))))
            .chain(cache.into_iter().flatten())
            .chain(
                [&step.ids, &step.positions, &step.row_seq, &step.page_table, &step.select]
                    .map(|s| ("the step's own buffers", s)),
            )
            .collect();
        for (i, output) in launch.outputs.iter().enumerate() {
            let later = launch.outputs[i + 1..].iter().map(|y| ("another output", &y.slice));
            for (other, slice) in others.iter().copied().chain(later) {
                if overlap(&output.slice, slice) {
                    let scope = launch.scope.clone();
                    return Err(KernelError::Overlap { scope, op: self.kind, output: i, other });
                }
            }
        }
        Ok(())
    }
}

fn overlap(a: &Slice, b: &Slice) -> bool {
    let range = |s: &Slice| (s.device_addr(), s.device_addr() + s.len() as u64);
    let ((a, a_end), (b, b_end)) = (range(a), range(b));
    a < b_end && b < a_end
}
