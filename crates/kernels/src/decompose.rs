//! Each fused op as simpler ones. This is what a fused op *means*: ports are held against it.

use crate::{CacheKind, Graph, Node, Op, RowSet, ValueId, ValueType};

/// The node as simpler ops, or none when it is a primitive. Some may be fused in their turn. Intermediate values are added
/// to the graph; the new nodes make the fused node's outputs, so nothing else in the graph changes.
pub fn decompose(graph: &mut Graph, node: &Node) -> Option<Vec<Node>> {
    let make = |op: Op, inputs: &[ValueId], outputs: &[ValueId]| Node {
        op,
        scope: node.scope.clone(),
        inputs: inputs.to_vec(),
        weights: Vec::new(),
        cache: None,
        outputs: outputs.to_vec(),
    };
    match &node.op {
        Op::AddRmsNorm { eps } => {
            let (sum, normed) = (node.outputs[0], node.outputs[1]);
            let width = graph.value(sum).cols;
            let add = make(Op::Add, &node.inputs, &[sum]);
            let mut norm = make(Op::RmsNorm { width, eps: *eps }, &[sum], &[normed]);
            norm.weights.clone_from(&node.weights);
            Some(vec![add, norm])
        }
        Op::GateUp(f) => {
            let out = node.outputs[0];
            let (rows, cols) = (graph.value(out).rows, graph.value(out).cols);
            let [gate, up, active] =
                std::array::from_fn(|_| graph.add_value(rows, cols, ValueType::Activation));
            let mut gate_matmul = make(Op::Matmul, &node.inputs, &[gate]);
            gate_matmul.weights = vec![node.weights[0]];
            let mut up_matmul = make(Op::Matmul, &node.inputs, &[up]);
            up_matmul.weights = vec![node.weights[1]];
            let activate = make(Op::Activate(*f), &[gate], &[active]);
            let product = make(Op::Mul, &[active, up], &[out]);
            Some(vec![gate_matmul, up_matmul, activate, product])
        }
        Op::RopeAppend { heads, rot, style } => {
            let [q, k, v, table] = [node.inputs[0], node.inputs[1], node.inputs[2], node.inputs[3]];
            let CacheKind::Paged { kv_heads, k_dim, .. } = graph.caches[node.cache?.index()].kind else {
                return None;
            };
            let rotated = graph.add_value(RowSet::Tokens, graph.value(k).cols, ValueType::Activation);
            let rope = |heads| Op::Rope { heads, head_dim: k_dim, rot: *rot, style: *style };
            let rope_q = make(rope(*heads), &[q, table], &[node.outputs[0]]);
            let rope_k = make(rope(kv_heads), &[k, table], &[rotated]);
            let mut append = make(Op::CacheAppend, &[rotated, v], &[]);
            append.cache = node.cache;
            Some(vec![rope_q, rope_k, append])
        }
        Op::Qkv => {
            let matmul = |(i, &output): (usize, &ValueId)| {
                let mut matmul = make(Op::Matmul, &node.inputs, &[output]);
                matmul.weights = [i, i + 3].iter().filter_map(|&w| node.weights.get(w)).copied().collect();
                matmul
            };
            Some(node.outputs.iter().enumerate().map(matmul).collect())
        }
        Op::NormRopeAppend { eps, heads, rot, style } => {
            let CacheKind::Paged { k_dim, .. } = graph.caches[node.cache?.index()].kind else { return None };
            let mut nodes = Vec::with_capacity(3);
            let mut inputs = node.inputs.clone();
            for (input, &weight) in inputs.iter_mut().zip(&node.weights) {
                let (rows, cols) = (graph.value(*input).rows, graph.value(*input).cols);
                let normed = graph.add_value(rows, cols, ValueType::Activation);
                let mut norm = make(Op::RmsNorm { width: k_dim, eps: *eps }, &[*input], &[normed]);
                norm.weights = vec![weight];
                nodes.push(norm);
                *input = normed;
            }
            let op = Op::RopeAppend { heads: *heads, rot: *rot, style: *style };
            let mut append = make(op, &inputs, &node.outputs);
            append.cache = node.cache;
            nodes.push(append);
            Some(nodes)
        }
        _ => None,
    }
}

/// [`decompose`] down to primitives: the node itself where it is one.
pub(crate) fn primitives(graph: &mut Graph, node: Node) -> Vec<Node> {
    match decompose(graph, &node) {
        Some(parts) => parts.into_iter().flat_map(|part| primitives(graph, part)).collect(),
        None => vec![node],
    }
}
