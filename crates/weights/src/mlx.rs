//! MLX's quantized modules: `P.weight` (u32), `P.scales` and, for affine, `P.biases` become one tensor.
//!
//! The shapes say what is there; the config says which of the readings that fit is meant. With `c` columns of
//! u32 codes and `s` scales a row, `bits * group = 32 * c / s`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use portolan_device::DType;

use crate::{
    BlockScale, Element, Encoding, Result, Source, Span, TensorInfo, WeightError,
    quant_config::{Mode, Override, Packing, QuantConfig},
};

const BITS: [usize; 7] = [4, 8, 6, 5, 3, 2, 1];
const GROUPS: [usize; 4] = [64, 32, 128, 16];

/// Folds every quantized module in place, and says how many there were.
pub(crate) fn fold(
    tensors: &mut BTreeMap<String, TensorInfo>,
    config: &QuantConfig,
    path: &Path,
) -> Result<usize> {
    let modules: Vec<String> = tensors
        .keys()
        .filter_map(|name| name.strip_suffix(".scales"))
        .filter(|p| {
            tensors.get(&format!("{p}.weight")).is_some_and(|w| w.encoding == Encoding::Dense(DType::U32))
        })
        .map(str::to_owned)
        .collect();
    let lengths = known_lengths(tensors);
    let folded = modules.len();
    for module in modules {
        let fail = |reason: String| WeightError::Quantization {
            path: path.to_owned(),
            module: module.clone(),
            reason,
        };
        let mut take = |what: &str| tensors.remove(&format!("{module}.{what}"));
        let (Some(weight), Some(scales), biases) = (take("weight"), take("scales"), take("biases")) else {
            continue;
        };
        let whole = Parts { weight, scales, biases }.fold(config, &module, &lengths).map_err(fail)?;
        tensors.insert(whole.name.clone(), whole);
    }
    Ok(folded)
}

/// Lengths that occur as a vector's length or as a number of rows: a weight's `k` is nearly always one.
fn known_lengths(tensors: &BTreeMap<String, TensorInfo>) -> BTreeSet<usize> {
    tensors
        .values()
        .filter_map(|t| match *t.shape {
            [n] => Some(n),
            [.., rows, _] => Some(rows),
            [] => None,
        })
        .collect()
}

struct Parts {
    weight: TensorInfo,
    scales: TensorInfo,
    biases: Option<TensorInfo>,
}

impl Parts {
    fn fold(
        self,
        config: &QuantConfig,
        module: &str,
        lengths: &BTreeSet<usize>,
    ) -> Result<TensorInfo, String> {
        let Parts { weight, scales, biases } = self;
        let (Some((&columns, rows)), Some((&groups, scale_rows))) =
            (weight.shape.split_last(), scales.shape.split_last())
        else {
            return Err("its weight or scales are a scalar".to_owned());
        };
        let shapes = || format!("codes {:?} and scales {:?}", weight.shape, scales.shape);
        if rows != scale_rows {
            return Err(format!("{} have different rows", shapes()));
        }
        if groups == 0 || columns == 0 || !(columns * 32).is_multiple_of(groups) {
            return Err(format!("{} do not divide into groups", shapes()));
        }
        let product = columns * 32 / groups;
        let meta = match scales.encoding {
            Encoding::Dense(dtype) if dtype.is_float() || dtype == DType::U8 => dtype,
            other => return Err(format!("its scales are {other}")),
        };
        let over = match config.override_of(module) {
            Some(Override::Dense) => {
                return Err(format!(
                    "the config says that it is not quantized, but the file has {}",
                    shapes()
                ));
            }
            Some(Override::Packed(packing)) => Some(packing),
            None => None,
        };
        let packing = match (meta, &biases) {
            (DType::U8, None) => float_packing(product),
            (DType::U8, Some(_)) => return Err("it has u8 scales and biases as well".to_owned()),
            (_, None) => return Err("it has scales, but no biases".to_owned()),
            (_, Some(biases)) => {
                if biases.shape != scales.shape || biases.encoding != scales.encoding {
                    return Err(format!(
                        "scales {:?} of {} and biases {:?} of {} differ",
                        scales.shape, scales.encoding, biases.shape, biases.encoding
                    ));
                }
                affine_packing(product, groups, over.or(config.default), lengths)
            }
        }
        .ok_or_else(|| format!("{}: no bits and group have a product of {product}", shapes()))?;
        if let Some(asked) = over
            && asked != packing
        {
            return Err(format!(
                "the config says {} with {} bits in groups of {}, which {} contradict: bits * group is {product} there",
                asked.mode.name(),
                asked.bits,
                asked.group,
                shapes()
            ));
        }
        let k = groups * packing.group;
        let shape = [rows, &[k]].concat();
        let spans = [Some(weight.source), Some(scales.source), biases.map(|b| b.source)];
        let spans: Vec<Span> = spans
            .into_iter()
            .flatten()
            .flat_map(|source| match source {
                Source::Planes(spans) => spans,
                Source::Blocks { span, .. } => vec![span],
            })
            .collect();
        let encoding = encoding(packing, meta);
        Ok(TensorInfo { name: weight.name, shape, encoding, source: Source::Planes(spans) })
    }
}

fn encoding(Packing { mode, bits, group }: Packing, meta: DType) -> Encoding {
    let group = group as u16;
    let float = |element, scale| Encoding::FloatBlock { element, group, scale };
    match mode {
        Mode::Affine => Encoding::Affine { bits: bits as u8, group, meta },
        Mode::MxFp4 => float(Element::E2M1, BlockScale::E8M0),
        Mode::MxFp8 => float(Element::E4M3, BlockScale::E8M0),
        Mode::NvFp4 => float(Element::E2M1, BlockScale::E4M3),
    }
}

/// The three small floats differ in `bits * group`, so the shapes alone tell them apart.
fn float_packing(product: usize) -> Option<Packing> {
    let (mode, bits, group) = match product {
        128 => (Mode::MxFp4, 4, 32),
        256 => (Mode::MxFp8, 8, 32),
        64 => (Mode::NvFp4, 4, 16),
        _ => return None,
    };
    Some(Packing { mode, bits, group })
}

/// The config's bits and group if the shapes allow them. Else what keeps its group, then its bits, then
/// whatever fits; of these, one whose row length occurs elsewhere in the checkpoint goes first.
fn affine_packing(
    product: usize,
    groups: usize,
    asked: Option<Packing>,
    lengths: &BTreeSet<usize>,
) -> Option<Packing> {
    let valid = |bits: usize, group: usize| {
        BITS.contains(&bits) && GROUPS.contains(&group) && bits.checked_mul(group) == Some(product)
    };
    let asked = asked.filter(|p| p.mode == Mode::Affine);
    if let Some(packing) = asked.filter(|p| valid(p.bits, p.group)) {
        return Some(packing);
    }
    let all = GROUPS.iter().flat_map(|&group| BITS.iter().map(move |&bits| (bits, group)));
    let mut fitting: Vec<(usize, usize)> = all.filter(|&(bits, group)| valid(bits, group)).collect();
    // Stable: candidates that rank alike stay in the order of the two tables, the commonest first.
    fitting.sort_by_key(|&(bits, group)| {
        let known = lengths.contains(&(groups * group));
        let like = asked.map_or(2, |p| {
            if p.group == group {
                0
            } else if p.bits == bits {
                1
            } else {
                2
            }
        });
        (!known, like)
    });
    fitting.first().map(|&(bits, group)| Packing { mode: Mode::Affine, bits, group })
}
