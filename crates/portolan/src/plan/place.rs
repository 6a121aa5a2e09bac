//! Where each value lies in the workspace: values that are not alive at the same time share memory.

use portolan_device::DType;
use portolan_kernels::{ValueId, exec::StepLimits, row_bytes};

use super::Lowered;

/// Alignment of a value: whole cache lines, and what GPU kernels load at once.
const ALIGN: usize = 256;

/// The workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// By value: first byte and length; none for a value that nothing makes.
    pub(crate) ranges: Vec<Option<(usize, usize)>>,
    /// Size of the workspace.
    pub(crate) bytes: usize,
}

/// Places every value. A node's outputs overlap neither its inputs nor each other, because a value is alive from
/// the first node that makes it (a fused one and one of those that it comes apart to may both) to the last that reads it,
/// both included.
pub(crate) fn place(lowered: &Lowered, limits: StepLimits, activation: DType) -> Placement {
    let graph = &lowered.graph;
    let mut lives: Vec<Option<(usize, usize)>> = vec![None; graph.values.len()];
    for (index, lowered) in lowered.nodes.iter().enumerate() {
        for value in &lowered.node.outputs {
            let (_, last) = lives[value.index()].get_or_insert((index, index));
            *last = index;
        }
        for value in &lowered.node.inputs {
            if let Some((_, last)) = &mut lives[value.index()] {
                *last = index;
            }
        }
    }
    if let Some((_, last)) = graph.logits.and_then(|logits| lives[logits.index()].as_mut()) {
        *last = usize::MAX;
    }
    let size = |value: usize| {
        let info = graph.value(ValueId(value as u32));
        let rows = match info.rows {
            portolan_kernels::RowSet::Tokens => limits.rows,
            portolan_kernels::RowSet::Selected => limits.selected,
        };
        (rows * row_bytes(info.dtype, info.cols, activation)).next_multiple_of(ALIGN)
    };
    // Largest first leaves the fewest holes.
    let mut order: Vec<usize> = (0..lives.len()).filter(|&v| lives[v].is_some()).collect();
    order.sort_by_key(|&v| (std::cmp::Reverse(size(v)), v));
    let mut ranges: Vec<Option<(usize, usize)>> = vec![None; lives.len()];
    let mut bytes = 0;
    for value in order {
        let Some((from, to)) = lives[value] else { continue };
        let mut taken: Vec<(usize, usize)> = (0..lives.len())
            .filter(|&other| lives[other].is_some_and(|(f, t)| f <= to && from <= t))
            .filter_map(|other| ranges[other])
            .collect();
        taken.sort_unstable();
        let len = size(value);
        let mut offset = 0;
        for (start, length) in taken {
            if offset + len <= start {
                break;
            }
            offset = offset.max(start + length);
        }
        ranges[value] = Some((offset, len));
        bytes = bytes.max(offset + len);
    }
    Placement { ranges, bytes: bytes.max(ALIGN) }
}
