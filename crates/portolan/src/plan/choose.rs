//! Which variant serves a node, for every number of rows that a step can have.

use portolan_device::{DType, DeviceCaps, DeviceKind};
use portolan_kernels::{
    Decline, Graph, Node, Op, OpKind, OpSpec, PortPolicy, RowSet, ValueType, Variant,
    chart::{WeightSpec, slot},
    log_choice, select_port,
};

use portolan_kernels::exec::StepLimits;

/// What ports are chosen for.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) caps: &'a DeviceCaps,
    pub(crate) policy: &'a PortPolicy,
    pub(crate) limits: StepLimits,
    pub(crate) cache_dtype: DType,
    pub(crate) activation: DType,
}

/// A node's variants, and the type that its first input is to have.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub(crate) input: ValueType,
    /// For up to so many rows, ascending.
    pub(crate) variants: Vec<(usize, &'static Variant)>,
    /// Most rows of the steps that it was made for. Larger ones ask again.
    pub(crate) upto: usize,
    /// Why the rows beyond the last variant's have none, where there are such.
    pub(crate) beyond: Option<Refusal>,
}

/// Why a node cannot run as it is, and for which use.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) decline: Decline,
    pub(crate) spec: String,
}

/// Row counts up to which the choice may differ: the borders of the slot's variants.
fn borders(op: OpKind, device: DeviceKind, most: usize) -> Vec<usize> {
    let mut borders: Vec<usize> = slot(op, device)
        .iter()
        .flat_map(|v| [v.rows.0.saturating_sub(1), v.rows.1])
        .filter(|&rows| rows > 0 && rows < most)
        .collect();
    borders.push(most);
    borders.sort_unstable();
    borders.dedup();
    borders
}

/// Chooses for a node whose weights are `weights`, for steps of `first` rows and more. At the first number of rows that no
/// variant serves the choice ends.
///
/// # Errors
/// Where none serves `first`.
pub(crate) fn choose(
    target: Target<'_>,
    graph: &Graph,
    node: &Node,
    weights: &[WeightSpec],
    first: usize,
) -> Result<Choice, Refusal> {
    let plain = node.inputs.first().map_or(ValueType::Activation, |&v| graph.value(v).dtype);
    // Rows of integers pay for themselves where the weights are integers too; every quantized matmul asks first, and for
    // int8 before 15 bits, since ports of int8 are there for whoever opened them.
    let wants_integers = matches!(node.op, Op::Matmul | Op::GateUp(_))
        && plain == ValueType::Activation
        && !target.policy.exact
        && weights.first().is_some_and(|w| w.encoding.is_quantized());
    let open =
        |input: &ValueType| has_open_port(target, &spec_of(target, graph, node, weights, *input, first));
    let integers =
        [ValueType::Q8Rows, ValueType::Q15Rows].into_iter().find(|input| wants_integers && open(input));
    if let Some(input) = integers
        && let Ok(choice) = for_input(target, graph, node, weights, input, first)
    {
        match (choice.beyond.is_none(), choice.variants.last()) {
            (true, _) => return Ok(choice),
            // Ports for few rows serve these, and larger steps ask again. What a row comes to then depends on how many
            // others there are.
            (false, Some(&(upto, _))) if !target.policy.deterministic => {
                return Ok(Choice { upto, beyond: None, ..choice });
            }
            _ => {}
        }
    }
    for_input(target, graph, node, weights, plain, first)
}

/// Whether any port takes a use and need not be opened first. It is asked in silence: that a device has none is no decline.
fn has_open_port(target: Target<'_>, spec: &OpSpec<'_>) -> bool {
    let opened = target.policy.switches.get(&spec.op.kind()) == Some(&true);
    let open = |v: &&Variant| opened || !v.opt_in;
    slot(spec.op.kind(), target.caps.kind()).iter().filter(open).any(|v| (v.takes)(spec, target.caps).is_ok())
}

fn spec_of<'a>(
    target: Target<'_>,
    graph: &Graph,
    node: &'a Node,
    weights: &'a [WeightSpec],
    input: ValueType,
    rows: usize,
) -> OpSpec<'a> {
    OpSpec {
        op: &node.op,
        rows,
        activation: target.activation,
        input,
        input_cols: node.inputs.first().map_or(0, |&v| graph.value(v).cols),
        weights,
        cache: node.cache.map(|c| (graph.caches[c.index()].kind, target.cache_dtype)),
    }
}

fn for_input(
    target: Target<'_>,
    graph: &Graph,
    node: &Node,
    weights: &[WeightSpec],
    input: ValueType,
    first: usize,
) -> Result<Choice, Refusal> {
    let rows_of = |set| match set {
        RowSet::Tokens => target.limits.rows,
        RowSet::Selected => target.limits.selected,
    };
    let most = node.outputs.first().map_or(target.limits.rows, |&v| rows_of(graph.value(v).rows));
    let kind = node.op.kind();
    let mut variants: Vec<(usize, &'static Variant)> = Vec::new();
    let mut beyond = None;
    for rows in borders(kind, target.caps.kind(), most).into_iter().filter(|&rows| rows >= first) {
        let spec = spec_of(target, graph, node, weights, input, rows);
        let selected = select_port(&spec, target.caps, target.policy);
        log_choice(&spec, target.caps, selected);
        let variant = match selected {
            Ok(variant) => variant,
            Err(decline) => {
                beyond = Some(Refusal { decline, spec: spec.to_string() });
                break;
            }
        };
        match variants.last_mut() {
            Some((upto, last)) if last.name == variant.name => *upto = rows,
            _ => variants.push((rows, variant)),
        }
    }
    match beyond {
        Some(refusal) if variants.is_empty() => Err(refusal),
        beyond => Ok(Choice { input, variants, upto: usize::MAX, beyond }),
    }
}
