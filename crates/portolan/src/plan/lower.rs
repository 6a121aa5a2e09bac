//! Lowering: fused ops without a port are taken apart, layouts are chosen, int8 rows are put in where a
//! matmul wants them.
//!
//! A fused op may have ports for few rows only. It then serves steps of so many rows, and what it comes apart to serves
//! the larger ones: both write the same values, and a step goes past one of them. So it is where a matmul wants int8 rows
//! in small steps alone.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use portolan_kernels::{
    Graph, KernelError, Node, Op, RowCodes, ValueId, ValueType, Variant,
    chart::{WeightSpec, layouts},
    decompose,
};
use portolan_weights::{Encoding, Layout};

use super::choose::{Choice, Refusal, Target, choose};
use crate::{Error, Result};

/// A node that runs.
#[derive(Clone, Debug)]
pub(crate) struct LoweredNode {
    pub(crate) node: Node,
    /// Fewest and most rows of the steps that it is there for.
    pub(crate) rows: (usize, usize),
    pub(crate) variants: Vec<(usize, &'static Variant)>,
}

/// A graph for one device.
#[derive(Clone, Debug)]
pub(crate) struct Lowered {
    /// The graph, with the values that lowering added. Its nodes are those below.
    pub(crate) graph: Arc<Graph>,
    pub(crate) nodes: Vec<LoweredNode>,
    /// By weight.
    pub(crate) layouts: Vec<Layout>,
}

/// Lowers a graph whose weights have the given encodings and shapes.
pub(crate) fn lower(target: Target<'_>, graph: &Graph, encodings: &[Encoding]) -> Result<Lowered> {
    let candidates: Vec<Vec<Layout>> = graph
        .weights
        .iter()
        .zip(encodings)
        .map(|(w, &encoding)| {
            if target.policy.exact { vec![Layout::Planes] } else { layouts(encoding, &w.shape, target.caps) }
        })
        .collect();
    // Every weight begins with the layout that its kernels like best. Where one of its consumers cannot read
    // that, it falls to the next, until all agree; the last, plain planes, is read by all.
    let mut tried = vec![0; candidates.len()];
    loop {
        let specs: Vec<WeightSpec> = (0..candidates.len())
            .map(|i| WeightSpec {
                encoding: encodings[i],
                layout: candidates[i].get(tried[i]).copied().unwrap_or_default(),
                shape: graph.weights[i].shape.clone(),
            })
            .collect();
        match attempt(target, graph, &specs) {
            Ok(lowered) => return Ok(lowered),
            Err(failure) => {
                let mut moved = false;
                for weight in failure.weights {
                    if tried[weight] + 1 < candidates[weight].len() {
                        tried[weight] += 1;
                        moved = true;
                    }
                }
                if !moved {
                    return Err(*failure.error);
                }
            }
        }
    }
}

struct Failure {
    /// Weights of the nodes that cannot run.
    weights: BTreeSet<usize>,
    /// The first such node.
    error: Box<Error>,
}

fn attempt(target: Target<'_>, graph: &Graph, specs: &[WeightSpec]) -> Result<Lowered, Failure> {
    let mut graph = graph.clone();
    let source = std::mem::take(&mut graph.nodes);
    let mut lowering =
        Lowering { target, graph, specs, nodes: Vec::new(), rounded: HashMap::new(), failure: None };
    for node in &source {
        lowering.add(node, 1);
    }
    match lowering.failure {
        Some(failure) => Err(failure),
        None => Ok(Lowered {
            graph: Arc::new(lowering.graph),
            nodes: lowering.nodes,
            layouts: specs.iter().map(|s| s.layout).collect(),
        }),
    }
}

struct Lowering<'a> {
    target: Target<'a>,
    graph: Graph,
    specs: &'a [WeightSpec],
    nodes: Vec<LoweredNode>,
    /// The rows of a value rounded to integers, once a matmul has asked for them, and the place of the node that makes them.
    rounded: HashMap<(ValueId, RowCodes), (ValueId, usize)>,
    failure: Option<Failure>,
}

impl Lowering<'_> {
    fn choose(&self, node: &Node, first: usize) -> Result<Choice, Refusal> {
        let weights: Vec<_> = node.weights.iter().map(|w| self.specs[w.index()].clone()).collect();
        choose(self.target, &self.graph, node, &weights, first)
    }

    /// Adds a node for steps of `first` rows and more, or what it comes apart to. What cannot run is noted, and lowering
    /// goes on, so that all that fail are known.
    fn add(&mut self, node: &Node, first: usize) {
        let (refusal, next) = match self.choose(node, first) {
            Ok(Choice { beyond: None, input, variants, upto }) => {
                self.push(node, input, (first, upto), variants);
                if upto < usize::MAX {
                    self.add(node, upto + 1);
                }
                return;
            }
            Ok(Choice { beyond: Some(refusal), input, variants, .. }) if node.op.kind().is_fused() => {
                let most = variants.last().map_or(0, |(most, _)| *most);
                self.push(node, input, (first, most), variants);
                (refusal, most + 1)
            }
            Ok(Choice { beyond: Some(refusal), .. }) | Err(refusal) => (refusal, first),
        };
        match decompose(&mut self.graph, node) {
            Some(parts) => parts.iter().for_each(|part| self.add(part, next)),
            None => self.fail(node, refusal),
        }
    }

    fn push(
        &mut self,
        node: &Node,
        input: ValueType,
        rows: (usize, usize),
        variants: Vec<(usize, &'static Variant)>,
    ) {
        let mut lowered = LoweredNode { node: node.clone(), rows, variants };
        if let Some(how) = RowCodes::of(input) {
            match self.rounded(node.inputs[0], how, &node.scope, rows) {
                Ok(rounded) => lowered.node.inputs[0] = rounded,
                Err(refusal) => return self.fail(node, refusal),
            }
        }
        self.nodes.push(lowered);
    }

    /// The rows of a value rounded to integers, in steps of `rows`, fewest and most. Matmuls share them: they are made in the
    /// steps in which any of these asks for them.
    fn rounded(
        &mut self,
        value: ValueId,
        how: RowCodes,
        scope: &str,
        rows: (usize, usize),
    ) -> Result<ValueId, Refusal> {
        if let Some(&(rounded, at)) = self.rounded.get(&(value, how)) {
            let made = &mut self.nodes[at].rows;
            *made = (made.0.min(rows.0), made.1.max(rows.1));
            return Ok(rounded);
        }
        let info = self.graph.value(value).clone();
        let rounded = self.graph.add_value(info.rows, info.cols, how.value_type());
        let node = Node {
            op: Op::QuantizeRows(how),
            scope: scope.to_owned(),
            inputs: vec![value],
            weights: Vec::new(),
            cache: None,
            outputs: vec![rounded],
        };
        let Choice { variants, beyond, .. } = self.choose(&node, 1)?;
        if let Some(refusal) = beyond {
            return Err(refusal);
        }
        self.nodes.push(LoweredNode { node, rows, variants });
        self.rounded.insert((value, how), (rounded, self.nodes.len() - 1));
        Ok(rounded)
    }

    fn fail(&mut self, node: &Node, refusal: Refusal) {
        let weights = node.weights.iter().map(|w| w.index());
        match &mut self.failure {
            Some(failure) => failure.weights.extend(weights),
            None => {
                let error = Box::new(self.refused(node, refusal));
                self.failure = Some(Failure { weights: weights.collect(), error });
            }
        }
    }

    fn refused(&self, node: &Node, refusal: Refusal) -> Error {
        KernelError::NoPort {
            scope: node.scope.clone(),
            op: node.op.kind(),
            device: self.target.caps.kind(),
            spec: refusal.spec,
            decline: refusal.decline,
        }
        .into()
    }
}
