//! Nemotron-3-Nano-30B-A3B: Mamba-2, attention and experts, a layer each.

use serde_json::{Value, json};

use super::super::{
    fill::Values,
    gguf::Meta,
    param::{Decoder, Kind, Param, RouterBits, output},
};
use super::{Cut, Spec, Vocab};

/// A letter a layer: Mamba-2 (M), experts (E), attention (*).
const PATTERN: &str = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";

const SPECIAL: &[(usize, &str)] =
    &[(0, "<unk>"), (1, "<s>"), (2, "</s>"), (10, "<|im_start|>"), (11, "<|im_end|>")];

const HIDDEN: usize = 2688;
const INTERMEDIATE: usize = 1856;
const SHARED_INTERMEDIATE: usize = 3712;
const MAMBA_HEADS: usize = 64;
const MAMBA_HEAD_DIM: usize = 64;
const GROUPS: usize = 8;
const STATE: usize = 128;
const CONV_KERNEL: usize = 4;

pub(super) fn spec(cut: Cut) -> Spec {
    let pattern = &PATTERN[..cut.layers(PATTERN.len())];
    let (layers, vocab) = (pattern.len(), cut.vocab(131_072));
    let (experts, used) = cut.experts(128, 6);
    let decoder = Decoder {
        hidden: HIDDEN,
        layers,
        heads: 32,
        kv_heads: 2,
        head_dim: 128,
        vocab,
        tied: false,
        qk_norm: false,
        bias: false,
    };
    let mut params = vec![Param::matrix("backbone.embeddings.weight", "token_embd.weight", &[vocab, HIDDEN])];
    for (layer, kind) in pattern.chars().enumerate() {
        let (hf, gguf) = (format!("backbone.layers.{layer}"), format!("blk.{layer}"));
        params.push(Param::norm(format!("{hf}.norm.weight"), format!("{gguf}.attn_norm.weight"), HIDDEN));
        let mixer = format!("{hf}.mixer");
        match kind {
            'M' => mamba(&mixer, &gguf, &mut params),
            'E' => feed_forward(&mixer, &gguf, experts, &mut params),
            _ => decoder.attention(&mixer, &gguf, &mut params),
        }
    }
    params.push(Param::norm("backbone.norm_f.weight", "output_norm.weight", HIDDEN));
    params.push(output("lm_head.weight", vocab, HIDDEN));
    let by_layer = |letter: char, value: i32| {
        Meta::Ints(pattern.chars().map(|kind| if kind == letter { value } else { 0 }).collect())
    };
    Spec {
        name: "nemotron-3-nano-30b-a3b",
        config: config(&decoder, pattern, (experts, used)),
        architecture: "nemotron_h_moe",
        metadata: vec![
            ("block_count", Meta::U32(layers as u32)),
            ("context_length", Meta::U32(262_144)),
            ("embedding_length", Meta::U32(HIDDEN as u32)),
            ("feed_forward_length", by_layer('E', INTERMEDIATE as i32)),
            ("vocab_size", Meta::U32(vocab as u32)),
            ("attention.head_count", Meta::U32(32)),
            ("attention.head_count_kv", by_layer('*', 2)),
            ("attention.key_length", Meta::U32(128)),
            ("attention.value_length", Meta::U32(128)),
            ("attention.layer_norm_epsilon", Meta::F32(1e-5)),
            ("attention.layer_norm_rms_epsilon", Meta::F32(1e-5)),
            ("rope.freq_base", Meta::F32(10_000.0)),
            ("rope.dimension_count", Meta::U32(128)),
            ("ssm.conv_kernel", Meta::U32(CONV_KERNEL as u32)),
            ("ssm.state_size", Meta::U32(STATE as u32)),
            ("ssm.group_count", Meta::U32(GROUPS as u32)),
            ("ssm.inner_size", Meta::U32((MAMBA_HEADS * MAMBA_HEAD_DIM) as u32)),
            ("ssm.time_step_rank", Meta::U32(MAMBA_HEADS as u32)),
            ("expert_count", Meta::U32(experts as u32)),
            ("expert_used_count", Meta::U32(used as u32)),
            ("expert_feed_forward_length", Meta::U32(INTERMEDIATE as u32)),
            ("expert_shared_feed_forward_length", Meta::U32(SHARED_INTERMEDIATE as u32)),
            ("expert_shared_count", Meta::U32(1)),
            ("expert_group_count", Meta::U32(1)),
            ("expert_group_used_count", Meta::U32(1)),
            ("expert_weights_norm", Meta::Bool(true)),
            ("expert_weights_scale", Meta::F32(2.5)),
        ],
        params,
        vocab: Vocab { size: vocab, pre: "tekken", bos: 1, eos: 2, add_bos: true, special: SPECIAL },
    }
}

/// `config.json`.
fn config(decoder: &Decoder, pattern: &str, (experts, used): (usize, usize)) -> Value {
    let vocab = decoder.vocab;
    let mut config = json!({
        "architectures": ["NemotronHForCausalLM"],
        "attention_bias": false,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2.min(vocab - 1),
        "head_dim": decoder.head_dim,
        "hidden_dropout": 0.0,
        "hidden_size": HIDDEN,
        "hybrid_override_pattern": pattern,
        "initializer_range": 0.02,
        "intermediate_size": INTERMEDIATE,
        "layer_norm_epsilon": 1e-5,
        "max_position_embeddings": 262_144,
        "mlp_bias": false,
        "mlp_hidden_act": "relu2",
        "model_type": "nemotron_h",
        "norm_eps": 1e-5,
        "num_attention_heads": decoder.heads,
        "num_experts_per_tok": used,
        "num_hidden_layers": decoder.layers,
        "num_key_value_heads": decoder.kv_heads,
        "num_logits_to_keep": 1,
        "pad_token_id": 0,
        "partial_rotary_factor": 1.0,
        "rescale_prenorm_residual": true,
        "residual_in_fp32": false,
        "rope_theta": 10_000,
        "sliding_window": null,
        "tie_word_embeddings": false,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.55.4",
        "use_bias": false,
        "use_cache": true,
        "vocab_size": vocab,
    });
    let mixers = json!({
        "chunk_size": 128,
        "conv_kernel": CONV_KERNEL,
        "expand": 2,
        "mamba_head_dim": MAMBA_HEAD_DIM,
        "mamba_hidden_act": "silu",
        "mamba_num_heads": MAMBA_HEADS,
        "mamba_proj_bias": false,
        "mamba_ssm_cache_dtype": "float32",
        "moe_intermediate_size": INTERMEDIATE,
        "moe_shared_expert_intermediate_size": SHARED_INTERMEDIATE,
        "n_group": 1,
        "n_groups": GROUPS,
        "n_routed_experts": experts,
        "n_shared_experts": 1,
        "norm_topk_prob": true,
        "routed_scaling_factor": 2.5,
        "ssm_state_size": STATE,
        "time_step_floor": 0.0001,
        "time_step_max": 0.1,
        "time_step_min": 0.001,
        "topk_group": 1,
        "use_conv_bias": true,
        "use_mamba_kernels": true,
    });
    if let (Value::Object(config), Value::Object(mixers)) = (&mut config, mixers) {
        config.extend(mixers);
    }
    config
}

/// A Mamba-2 layer (arXiv 2405.21060). The first projection makes gate, x, B, C and a step for each head.
fn mamba(hf: &str, gguf: &str, params: &mut Vec<Param>) {
    let inner = MAMBA_HEADS * MAMBA_HEAD_DIM;
    let conv = inner + 2 * GROUPS * STATE;
    let plain = |hf_name: &str, gguf_name: &str, shape: &[usize], values: Values| {
        Param::new(
            format!("{hf}.{hf_name}"),
            format!("{gguf}.{gguf_name}"),
            shape,
            Kind::Plain { values, f32: false },
        )
    };
    params.push(Param::matrix(
        format!("{hf}.in_proj.weight"),
        format!("{gguf}.ssm_in.weight"),
        &[inner + conv + MAMBA_HEADS, HIDDEN],
    ));
    let mut weight =
        plain("conv1d.weight", "ssm_conv1d.weight", &[conv, 1, CONV_KERNEL], Values::Normal(0.5));
    weight.mlx_shape = Some(vec![conv, CONV_KERNEL, 1]);
    weight.gguf_shape = Some(vec![conv, CONV_KERNEL]);
    params.push(weight);
    params.push(Param::bias(format!("{hf}.conv1d.bias"), format!("{gguf}.ssm_conv1d.bias"), &[conv]));
    // The softplus of these are steps of 0.001 to 0.1, as at the beginning of a training.
    params.push(plain("dt_bias", "ssm_dt.bias", &[MAMBA_HEADS], Values::Uniform(-6.9, -2.25)));
    // Decays of 1 to 16: safetensors files keep their logarithm, GGUF the negative.
    let mut decay = plain("A_log", "ssm_a", &[MAMBA_HEADS], Values::Uniform(0.0, 2.77));
    decay.gguf = String::new();
    params.push(decay);
    let mut decay = plain("A_log", "ssm_a", &[MAMBA_HEADS, 1], Values::Uniform(-16.0, -1.0));
    (decay.hf, decay.mlx) = (String::new(), String::new());
    params.push(decay);
    let mut skip = plain("D", "ssm_d", &[MAMBA_HEADS], Values::Uniform(0.9, 1.1));
    skip.gguf_shape = Some(vec![MAMBA_HEADS, 1]);
    params.push(skip);
    let mut norm = Param::norm(format!("{hf}.norm.weight"), format!("{gguf}.ssm_norm.weight"), inner);
    norm.gguf_shape = Some(vec![GROUPS, inner / GROUPS]);
    params.push(norm);
    params.push(Param::matrix(
        format!("{hf}.out_proj.weight"),
        format!("{gguf}.ssm_out.weight"),
        &[HIDDEN, inner],
    ));
}

/// Routed experts and the one that all tokens share; no gate, so two matrices each.
fn feed_forward(hf: &str, gguf: &str, experts: usize, params: &mut Vec<Param>) {
    params.push(Param::new(
        format!("{hf}.gate.weight"),
        format!("{gguf}.ffn_gate_inp.weight"),
        &[experts, HIDDEN],
        Kind::Router { mlx: RouterBits::Dense },
    ));
    params.push(Param::new(
        format!("{hf}.gate.e_score_correction_bias"),
        format!("{gguf}.exp_probs_b.bias"),
        &[experts],
        Kind::Plain { values: Values::Normal(0.02), f32: true },
    ));
    for (module, mlx, name, up) in
        [("up_proj", "fc1", "ffn_up", true), ("down_proj", "fc2", "ffn_down", false)]
    {
        let shape = |width: usize| if up { [width, HIDDEN] } else { [HIDDEN, width] };
        let [rows, k] = shape(INTERMEDIATE);
        let routed = Param::matrix(
            format!("{hf}.experts.{{e}}.{module}.weight"),
            format!("{gguf}.{name}_exps.weight"),
            &[experts, rows, k],
        );
        params.push(routed.mlx(format!("{hf}.switch_mlp.{mlx}.weight")));
        params.push(Param::matrix(
            format!("{hf}.shared_experts.{module}.weight"),
            format!("{gguf}.{name}_shexp.weight"),
            &shape(SHARED_INTERMEDIATE),
        ));
    }
}
