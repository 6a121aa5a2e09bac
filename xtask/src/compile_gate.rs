//! What the gates that compile kernels share: which kernels of a device are taken, and compiling on all cores.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use portolan::{
    device::{DeviceCaps, KernelSource},
    kernels::gpu::offline::Wanted,
};

/// A kernel to compile, under the name that its variant has in the budget.
pub(crate) struct Job<'a> {
    pub(crate) name: String,
    pub(crate) source: KernelSource<'a>,
}

impl Job<'_> {
    /// The kernel with all that it is compiled with, for messages.
    pub(crate) fn shown(&self) -> String {
        let defines = self.source.defines.iter().map(|(name, value)| format!(" -D{name}={value}"));
        format!("{}, {}{}", self.name, self.source, defines.collect::<String>())
    }
}

/// The name of a kernel's variant, as budgets have it.
pub(crate) fn name(wanted: &Wanted) -> String {
    format!("{} {}", wanted.op, wanted.variant)
}

/// A job for each kernel.
pub(crate) fn jobs<'a>(kernels: &'a [Wanted], caps: &DeviceCaps) -> Vec<Job<'a>> {
    kernels.iter().map(|w| Job { name: name(w), source: w.source(caps) }).collect()
}

fn by_variant(all: Vec<Wanted>) -> impl Iterator<Item = Vec<Wanted>> {
    let mut found: BTreeMap<_, Vec<Wanted>> = BTreeMap::new();
    for wanted in all {
        found.entry((wanted.op, wanted.variant)).or_default().push(wanted);
    }
    found.into_values()
}

/// Some of the kernels: of every variant as many, spread evenly from its first to its last.
pub(crate) fn spread(all: Vec<Wanted>, most: usize) -> Vec<Wanted> {
    let variants: Vec<_> = by_variant(all).collect();
    let each = (most / variants.len().max(1)).max(1);
    let pick = |list: Vec<Wanted>| {
        let (each, last) = (each.min(list.len()), list.len().saturating_sub(1));
        let at = move |i: usize| if each == 1 { 0 } else { i * last / (each - 1) };
        (0..each).filter_map(move |i| list.get(at(i)).cloned())
    };
    variants.into_iter().flat_map(pick).collect()
}

/// Of every variant its first kernel, and the one whose defines are the largest numbers: its sizes, more or less.
pub(crate) fn first_and_largest(all: Vec<Wanted>) -> Vec<Wanted> {
    let size = |w: &Wanted| w.defines.iter().filter_map(|(_, v)| v.parse::<u64>().ok()).sum::<u64>();
    let pick = |list: Vec<Wanted>| {
        let largest = list.iter().max_by_key(|w| size(w)).cloned();
        let first = list.into_iter().next();
        let other = largest.filter(|w| Some(w) != first.as_ref());
        first.into_iter().chain(other)
    };
    by_variant(all).flat_map(pick).collect()
}

/// Does a piece of work for each item, on all cores. The results are in the order of the items.
pub(crate) fn on_all_cores<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<BTreeMap<usize, R>> = Mutex::default();
    let worker = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return };
            let result = work(item);
            done.lock().unwrap_or_else(PoisonError::into_inner).insert(at, result);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            scope.spawn(worker);
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

/// What of `taken` is more than the budget has: rows of a name, what is taken, and the most.
pub(crate) fn over(rows: &[(&str, u32, u32)]) -> Option<String> {
    let over: Vec<_> = rows
        .iter()
        .filter(|(_, taken, most)| taken > most)
        .map(|(what, taken, most)| format!("{taken} {what}, the budget is {most}"))
        .collect();
    (!over.is_empty()).then(|| over.join("; "))
}

#[cfg(test)]
mod tests {
    use portolan::kernels::OpKind;

    use super::*;

    fn wanted(variant: &'static str, sizes: &[&str]) -> Vec<Wanted> {
        let of = |size: &&str| Wanted {
            op: OpKind::Add,
            variant,
            file: "a.cu",
            entry: "a",
            defines: vec![("SIZE", (*size).to_owned()), ("T", "f16".to_owned())],
        };
        sizes.iter().map(of).collect()
    }

    #[track_caller]
    fn check(chosen: &[Wanted], want: &[(&str, &str)]) {
        let found: Vec<_> = chosen.iter().map(|w| (w.variant, w.defines[0].1.as_str())).collect();
        assert_eq!(found, want);
    }

    #[test]
    fn every_variant_is_in_a_sample() {
        let all = [wanted("x", &["1", "9", "3", "4"]), wanted("y", &["2"])].concat();
        check(&spread(all.clone(), 0), &[("x", "1"), ("y", "2")]);
        check(&spread(all.clone(), 4), &[("x", "1"), ("x", "4"), ("y", "2")]);
        check(&first_and_largest(all), &[("x", "1"), ("x", "9"), ("y", "2")]);
        check(&spread(vec![], 4), &[]);
        check(&first_and_largest(vec![]), &[]);
    }

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let items: Vec<usize> = (0..100).collect();
        assert_eq!(on_all_cores(&items, |i| i * 2), (0..100).map(|i| i * 2).collect::<Vec<_>>());
        assert!(on_all_cores(&[] as &[u32], |i| *i).is_empty());
    }

    #[test]
    fn what_is_over_the_budget_is_named() {
        assert_eq!(over(&[("a", 1, 1)]), None);
        assert_eq!(
            over(&[("a", 2, 1), ("b", 0, 0), ("c", 5, 4)]).as_deref(),
            Some("2 a, the budget is 1; 5 c, the budget is 4")
        );
    }
}
