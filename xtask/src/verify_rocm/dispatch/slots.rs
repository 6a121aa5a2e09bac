//! How many slots of the chart are empty, by device: one that empties unseen would let an op run in pieces.

use portolan::{
    device::DeviceKind,
    kernels::{OpKind, has_kernel_port},
};

/// Empty slots. The CPU's chart is that of x86-64: the fused `qkv` and `norm_rope_append` run in pieces there.
const EMPTY: [(DeviceKind, usize); 3] = [(DeviceKind::Cpu, 2), (DeviceKind::Cuda, 0), (DeviceKind::Rocm, 0)];

fn empty(device: DeviceKind) -> Vec<OpKind> {
    OpKind::ALL.into_iter().filter(|op| !has_kernel_port(*op, device)).collect()
}

/// Devices whose number of empty slots is another.
pub(super) fn check() -> Vec<String> {
    let charted =
        EMPTY.iter().filter(|(device, _)| *device != DeviceKind::Cpu || cfg!(target_arch = "x86_64"));
    charted.filter_map(|(device, pinned)| against(*device, *pinned)).collect()
}

fn against(device: DeviceKind, pinned: usize) -> Option<String> {
    let empty = empty(device);
    let names: Vec<_> = empty.iter().map(ToString::to_string).collect();
    (empty.len() != pinned).then(|| {
        format!(
            "{device}: {} slots of the chart are empty ({}), {pinned} are pinned in \
             xtask/src/verify_rocm/dispatch/slots.rs",
            empty.len(),
            names.join(", ")
        )
    })
}

/// The numbers by device.
pub(super) fn shown() -> String {
    EMPTY.map(|(device, _)| format!("{device} {}", empty(device).len())).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_number_of_empty_slots_is_found() {
        let count = empty(DeviceKind::Rocm).len();
        assert_eq!(against(DeviceKind::Rocm, count), None);
        assert!(against(DeviceKind::Rocm, count + 1).unwrap().contains("slots of the chart are empty"));
    }
}
