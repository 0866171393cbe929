"""Makes the tiny random checkpoints of the decoder families under src/test/resources/baton/engine/model/goldens, and the results of
Hugging Face transformers in fp32: greedy continuations and every logit of each of their steps.

    pip install torch transformers
    python engine/src/test/python/make_goldens.py [NAME...]

Made with transformers 5.23.0 (those from gemma3 on with 5.19.0) and torch 2.15.0 on a CPU. Tests read only its files. Weights are drawn so that attention is
far from uniform and no logit of a chosen token is near the second's; they are stored in bf16, so that fp32 and bf16 start alike.
"""

import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    Glm4Config,
    GlmConfig,
    GptOssConfig,
    GraniteConfig,
    GraniteMoeHybridConfig,
    LlamaConfig,
    MinistralConfig,
    MistralConfig,
    MixtralConfig,
    NemotronConfig,
    Olmo2Config,
    Olmo3Config,
    Phi3Config,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
    Starcoder2Config,
)

TARGET = pathlib.Path(__file__).parents[1] / "resources/baton/engine/model/goldens"
PROMPTS = [1, 45, 150]
STEPS = 8
MARGIN = 0.02
SHAPE = dict(
    vocab_size=192,
    hidden_size=64,
    intermediate_size=80,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=None,
)


def rope(kind, **fields):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=fields.pop("rope_theta", 10000.0), **fields))


FAMILIES = {
    "llama2": LlamaConfig(**{**SHAPE, "num_key_value_heads": 4}, rms_norm_eps=1e-5),
    "llama3": LlamaConfig(
        **SHAPE,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        **rope(
            "llama3",
            rope_theta=500000.0,
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
    "llama-biases": LlamaConfig(
        **{**SHAPE, "num_key_value_heads": 1}, attention_bias=True, mlp_bias=True, **rope("linear", factor=4.0)
    ),
    "mistral": MistralConfig(**SHAPE, sliding_window=20, head_dim=24, rms_norm_eps=1e-5),
    "qwen2": Qwen2Config(
        **SHAPE, tie_word_embeddings=True, use_sliding_window=True, sliding_window=33, max_window_layers=1
    ),
    "qwen2-yarn": Qwen2Config(
        **SHAPE,
        tie_word_embeddings=True,
        use_sliding_window=False,
        sliding_window=16,
        **rope("yarn", rope_theta=1000000.0, factor=4.0, original_max_position_embeddings=64),
    ),
    "qwen3": Qwen3Config(**SHAPE, head_dim=32, tie_word_embeddings=True, **rope("default", rope_theta=1000000.0)),
    "qwen3-layers": Qwen3Config(
        **SHAPE,
        head_dim=16,
        attention_bias=True,
        use_sliding_window=True,
        sliding_window=9,
        layer_types=["sliding_attention", "full_attention"],
        **rope(
            "yarn", factor=4.0, original_max_position_embeddings=64, attention_factor=0.8, beta_fast=16.0, beta_slow=2.0
        ),
    ),
    "gemma3": Gemma3TextConfig(
        **{**SHAPE, "num_hidden_layers": 3},
        head_dim=32,
        query_pre_attn_scalar=24,
        sliding_window=20,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        final_logit_softcapping=9.0,
        rope_parameters={
            "sliding_attention": dict(rope_type="default", rope_theta=10000.0),
            "full_attention": dict(rope_type="linear", rope_theta=1000000.0, factor=4.0),
        },
    ),
    "gemma2": Gemma2Config(
        **{**SHAPE, "num_hidden_layers": 3},
        head_dim=32,
        query_pre_attn_scalar=24,
        sliding_window=20,
        attn_logit_softcapping=4.0,
        final_logit_softcapping=7.0,
    ),
    "granite": GraniteConfig(
        **SHAPE,
        embedding_multiplier=6.0,
        attention_multiplier=0.3,
        residual_multiplier=0.4,
        logits_scaling=1.5,
        attention_bias=True,
        **rope("default", rope_theta=10000000.0),
    ),
    "olmo3": Olmo3Config(
        **{**SHAPE, "num_hidden_layers": 4},
        sliding_window=20,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        rope_parameters={
            "sliding_attention": dict(rope_type="default", rope_theta=500000.0),
            "full_attention": dict(
                rope_type="yarn", rope_theta=500000.0, factor=4.0, original_max_position_embeddings=64
            ),
        },
    ),
    "granite-hybrid": GraniteMoeHybridConfig(
        **SHAPE,
        embedding_multiplier=6.0,
        attention_multiplier=0.3,
        residual_multiplier=0.4,
        logits_scaling=1.5,
        shared_intermediate_size=96,
        num_local_experts=0,
        layer_types=["full_attention", "full_attention"],
        position_embedding_type="rope",
        mamba_n_heads=4,
        **rope("default", rope_theta=10000000.0),
    ),
    "ministral": MinistralConfig(
        **SHAPE,
        head_dim=24,
        sliding_window=20,
        layer_types=["full_attention", "sliding_attention"],
        **rope("default", rope_theta=1000000.0),
    ),
    "gemma3-vision": Gemma3Config(
        text_config=Gemma3TextConfig(
            **SHAPE,
            head_dim=32,
            sliding_window=20,
            layer_types=["sliding_attention", "full_attention"],
            rope_parameters={
                "sliding_attention": dict(rope_type="default", rope_theta=10000.0),
                "full_attention": dict(rope_type="linear", rope_theta=1000000.0, factor=8.0),
            },
        ),
        vision_config=dict(
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=28,
            patch_size=14,
            vision_use_head=False,
        ),
        mm_tokens_per_image=4,
    ),
    "starcoder2": Starcoder2Config(**SHAPE, sliding_window=20, **rope("default", rope_theta=100000.0)),
    "nemotron": NemotronConfig(
        **SHAPE,
        head_dim=32,
        attention_bias=True,
        mlp_bias=True,
        **rope("default", partial_rotary_factor=0.5),
    ),
    "glm": GlmConfig(**SHAPE, head_dim=32, **rope("default", partial_rotary_factor=0.5)),
    "glm4": Glm4Config(
        **SHAPE,
        head_dim=24,
        tie_word_embeddings=True,
        partial_rotary_factor=0.75,
        **rope("default", partial_rotary_factor=0.75),
    ),
    "phi3-long": Phi3Config(
        **{**SHAPE, "num_attention_heads": 2, "num_key_value_heads": 1},
        original_max_position_embeddings=64,
        tie_word_embeddings=True,
        **rope(
            "longrope",
            partial_rotary_factor=0.75,
            short_factor=[1 + 0.02 * i for i in range(12)],
            long_factor=[1 + 0.3 * i * i for i in range(12)],
            original_max_position_embeddings=64,
        ),
    ),
    "phi3-short": Phi3Config(
        **SHAPE,
        original_max_position_embeddings=192,
        **rope(
            "longrope",
            short_factor=[1 + 0.1 * i for i in range(8)],
            long_factor=[1.5 + i * i for i in range(8)],
            original_max_position_embeddings=192,
        ),
    ),
    "phi3": Phi3Config(**SHAPE, sliding_window=25, **rope("default", rope_theta=250000.0)),
    "smollm3": SmolLM3Config(
        **{**SHAPE, "num_hidden_layers": 3},
        no_rope_layers=[1, 0, 0],
        use_sliding_window=True,
        sliding_window=20,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        **rope("default", rope_theta=2000000.0),
    ),
    "olmo2": Olmo2Config(**SHAPE, attention_bias=True, **rope("default", rope_theta=500000.0)),
    "qwen3-moe": Qwen3MoeConfig(
        **{**SHAPE, "num_hidden_layers": 3},
        head_dim=32,
        num_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=48,
        norm_topk_prob=True,
        mlp_only_layers=[1],
        **rope("default", rope_theta=1000000.0),
    ),
    "mixtral": MixtralConfig(**SHAPE, num_local_experts=5, num_experts_per_tok=2, sliding_window=30),
    "qwen2-moe": Qwen2MoeConfig(
        **{**SHAPE, "num_hidden_layers": 4},
        tie_word_embeddings=True,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=40,
        shared_expert_intermediate_size=56,
        decoder_sparse_step=2,
        use_sliding_window=False,
    ),
    "deepseek-v2-lite": DeepseekV2Config(
        **{**SHAPE, "num_key_value_heads": 4},
        q_lora_rank=None,
        kv_lora_rank=48,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=24,
        n_routed_experts=6,
        n_shared_experts=2,
        num_experts_per_tok=2,
        moe_intermediate_size=40,
        first_k_dense_replace=1,
    ),
    "deepseek-v2": DeepseekV2Config(
        **{**SHAPE, "num_hidden_layers": 3, "num_key_value_heads": 4},
        q_lora_rank=40,
        kv_lora_rank=32,
        qk_nope_head_dim=24,
        qk_rope_head_dim=16,
        v_head_dim=32,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=3,
        moe_intermediate_size=48,
        first_k_dense_replace=1,
        topk_method="group_limited_greedy",
        n_group=4,
        topk_group=2,
        routed_scaling_factor=2.5,
        **rope(
            "yarn",
            factor=8.0,
            original_max_position_embeddings=32,
            beta_fast=16,
            beta_slow=1,
            mscale=0.707,
            mscale_all_dim=0.9,
        ),
    ),
    "deepseek-v3": DeepseekV3Config(
        **{**SHAPE, "num_hidden_layers": 3, "num_key_value_heads": 4},
        q_lora_rank=32,
        kv_lora_rank=64,
        qk_nope_head_dim=32,
        qk_rope_head_dim=32,
        v_head_dim=16,
        n_routed_experts=12,
        n_shared_experts=1,
        num_experts_per_tok=3,
        moe_intermediate_size=32,
        first_k_dense_replace=1,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=1.5,
        num_mtp_layers=0,
        **rope("yarn", factor=4.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=1.0),
    ),
}

GPT_OSS = GptOssConfig(
    **{**SHAPE, "num_hidden_layers": 3, "intermediate_size": 96},
    head_dim=32,
    num_local_experts=6,
    num_experts_per_tok=2,
    sliding_window=20,
    **rope(
        "yarn",
        rope_theta=150000.0,
        factor=4.0,
        beta_fast=32.0,
        beta_slow=1.0,
        truncate=False,
        original_max_position_embeddings=64,
    ),
)
FAMILIES |= {"gpt-oss": GPT_OSS, "gpt-oss-bf16": GPT_OSS}
FAMILIES |= {
    "qwen3-fp8": Qwen3Config(
        **{**SHAPE, "hidden_size": 160, "intermediate_size": 200}, head_dim=32, tie_word_embeddings=True
    ),
    "deepseek-v3-fp8": FAMILIES["deepseek-v3"],
    "llama-fp8": LlamaConfig(**SHAPE, tie_word_embeddings=True),
}

# With earlier seeds a rounding to bf16 changes which experts are chosen.
FIRST_SEEDS = {"deepseek-v3": 19}

# These get the config.json that transformers 4 wrote.
OLD_FORM = {"llama2", "llama3", "qwen2", "qwen2-yarn", "phi3-short", "gpt-oss"}

# The most tokens of a sequence, where they are not the model's default. transformers chooses LongRoPE's factors by each sequence's length, vLLM
# and Baton by this limit; so the long factors are made the short ones too.
MAX_MODEL_LEN = {"phi3-long": 256}

# The experts of these are MXFP4.
PACKED = {"gpt-oss"}

# Rows and columns of a block of these: their matrices are fp8 with a scale for each block, as checkpoints of fp8 and of compressed-tensors have them.
FP8 = {"qwen3-fp8": (128, 128), "deepseek-v3-fp8": (48, 40), "llama-fp8": (1, None)}
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def draw(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for name, weight in sorted(model.named_parameters()):
        drawn = torch.randn(weight.shape, generator=generator)
        if name.endswith("norm.weight"):
            # Gemma adds 1 itself.
            drawn = 0.3 * drawn + (0 if model.config.model_type.startswith("gemma") else 1)
        elif name.endswith("bias"):
            drawn = 0.5 * drawn
        elif name.endswith("sinks"):
            drawn = 2 * drawn
        elif model.config.model_type == "gpt_oss" and "experts." in name:
            # Many gates and products beyond the limit.
            drawn = 0.5 * drawn
        elif "embed_tokens" in name or "lm_head" in name:
            drawn = 0.3 * drawn
        else:
            drawn = 0.18 * drawn
        weight.data.copy_(drawn)
    for name, correction in sorted(model.named_buffers()):
        if name.endswith("e_score_correction_bias"):
            correction.copy_(0.2 * torch.randn(correction.shape, generator=generator))


def old_form(file):
    config = json.loads(file.read_text())
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    config["rope_scaling"] = None if parameters["rope_type"] == "default" else parameters
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.46.0"
    config.pop("layer_types", None)
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def mxfp4(matrices):
    """Numbers of 4 bits of matrices [experts, in, out] as [experts, out, in / 32, 32], and the exponent of each 32."""
    blocks = matrices.float().transpose(1, 2).unflatten(2, (-1, 32))
    exponents = blocks.abs().amax(-1, keepdim=True).log2().floor() - 2
    return (blocks / 2**exponents)[..., None].sub(E2M1).abs().argmin(-1), exponents


def round_experts(model):
    for name, weight in model.named_parameters():
        if name.endswith(("gate_up_proj", "down_proj")):
            numbers, exponents = mxfp4(weight.data)
            weight.data.copy_((E2M1[numbers] * 2**exponents).flatten(2).transpose(1, 2))


def pack_experts(directory):
    file = directory / "model.safetensors"
    tensors = {}
    for name, tensor in load_file(file).items():
        if name.endswith(("gate_up_proj", "down_proj")):
            numbers, exponents = mxfp4(tensor)
            tensors[name + "_blocks"] = (numbers[..., ::2] | numbers[..., 1::2] << 4).to(torch.uint8).contiguous()
            tensors[name + "_scales"] = (exponents.squeeze(-1) + 127).to(torch.uint8).contiguous()
        else:
            tensors[name] = tensor
    save_file(tensors, file, {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
        "quant_method": "mxfp4",
    }
    config["experts_per_token"] = config["num_experts_per_tok"]
    config["initial_context_length"] = 64
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def fp8(matrix, rows, columns):
    """Numbers of fp8, and the scales of their blocks, of which the last ones are smaller."""
    columns = columns or matrix.shape[1]
    padding = (0, -matrix.shape[1] % columns, 0, -matrix.shape[0] % rows)
    blocks = torch.nn.functional.pad(matrix.float(), padding).unflatten(1, (-1, columns)).unflatten(0, (-1, rows))
    scales = blocks.abs().amax((1, 3)) / 448
    return (matrix.float() / repeated(scales, matrix, rows, columns)).to(torch.float8_e4m3fn), scales


def repeated(scales, matrix, rows, columns):
    each = scales.repeat_interleave(rows, 0).repeat_interleave(columns or matrix.shape[1], 1)
    return each[: matrix.shape[0], : matrix.shape[1]]


def to_fp8(file, rows, columns):
    """The tensors of a file, with matrices in fp8; those in the file are dequantized."""
    packed, unpacked = {}, load_file(file)
    for name, tensor in unpacked.items():
        if name.endswith("proj.weight") or name.endswith("proj_with_mqa.weight"):
            numbers, scales = fp8(tensor, rows, columns)
            packed |= {name: numbers, name + ("_scale_inv" if columns else "_scale"): scales}
            unpacked[name] = (numbers.float() * repeated(scales, tensor, rows, columns)).contiguous()
        else:
            packed[name] = tensor
    save_file(unpacked, file, {"format": "pt"})
    return packed


def save_fp8(directory, packed, rows, columns):
    save_file(packed, directory / "model.safetensors", {"format": "pt"})
    file = directory / "config.json"
    config = json.loads(file.read_text())
    scheme = {"dynamic": False, "num_bits": 8, "strategy": "channel", "symmetric": True, "type": "float"}
    config["quantization_config"] = (
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [rows, columns]}
        if columns
        else {
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": scheme}},
            "format": "float-quantized",
            "ignore": ["lm_head"],
            "kv_cache_scheme": None,
            "quant_method": "compressed-tensors",
        }
    )
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


@torch.no_grad()
def greedy(model, prompt):
    """The continuation and the logits that chose each of its tokens, every step computed from nothing."""
    ids, rows = list(prompt), []
    for _ in range(STEPS):
        rows.append(model(torch.tensor([ids]), use_cache=False).logits[0, -1])
        ids.append(int(rows[-1].argmax()))
    return ids[len(prompt) :], torch.stack(rows)


def make(name, config, seed):
    """Whether all margins are wide enough."""
    directory = TARGET / name
    shutil.rmtree(directory, ignore_errors=True)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    draw(model, seed)
    if name in PACKED:
        round_experts(model)
    model.save_pretrained(directory)
    if name in OLD_FORM:
        old_form(directory / "config.json")
    packed = to_fp8(directory / "model.safetensors", *FP8[name]) if name in FP8 else {}
    (directory / "generation_config.json").unlink(missing_ok=True)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    if name in MAX_MODEL_LEN:
        parameters = model.config.rope_parameters
        parameters["short_factor"] = parameters["long_factor"]
        model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    generator = torch.Generator().manual_seed(seed)
    prompts, logits, margin = [], {}, float("inf")
    for length in PROMPTS:
        prompt = torch.randint(0, SHAPE["vocab_size"], (length,), generator=generator).tolist()
        output, rows = greedy(model, prompt)
        best = rows.topk(2).values
        margin = min(margin, float((best[:, 0] - best[:, 1]).min()))
        logits[str(length)] = rows
        prompts.append({"name": str(length), "prompt_ids": prompt, "output_ids": output})
    lines = ",\n".join(json.dumps(prompt) for prompt in prompts)
    limit = f'"max_model_len": {MAX_MODEL_LEN[name]}, ' if name in MAX_MODEL_LEN else ""
    (directory / "golden.json").write_text("{" + limit + '"prompts": [\n' + lines + "\n]}\n")
    save_file(logits, directory / "golden.safetensors")
    if name in PACKED:
        pack_experts(directory)
    if name in FP8:
        save_fp8(directory, packed, *FP8[name])
    spread = torch.cat(list(logits.values())).std()
    print(f"{name}: seed {seed}, least margin {margin:.3f}, logits' standard deviation {spread:.2f}")
    return margin > MARGIN


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    for family in sys.argv[1:] or FAMILIES:
        seed = FIRST_SEEDS.get(family, 1)
        while not make(family, FAMILIES[family], seed):
            seed += 1
