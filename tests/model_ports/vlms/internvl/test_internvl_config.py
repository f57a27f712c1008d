"""Both config formats: what is read, what is refused by name, and full-size key tables."""

import pytest
from support.configs import changed
from support.key_manifest import fake_headers, read_key_manifest

from model_ports.catalogue import published_config
from model_ports.convert.plan import build_plan
from model_ports.errors import UserError
from model_ports.registry import port_for
from model_ports.vlms.internvl import PORT

# (original repository, transformers), their tensors and layouts, and the language model.
VERSIONS = {
    "3": (("internvl3-8b", 685), ("internvl3-8b-hf", 781)),
    "3.5": (("internvl3.5-8b", 745), ("internvl3.5-8b-hf", 841)),
    "2.5": (("internvl2.5-8b", 573), ("internvl2.5-8b-mpo-hf", 733)),
}
# layers, dim, heads, kv_heads, head_dim, mlp_dim, vocab, norm_eps, qkv_bias, qk_norm
DECODERS = {
    "3": (28, 3584, 28, 4, 128, 18944, 151674, 1e-6, True, False),
    "3.5": (36, 4096, 32, 8, 128, 12288, 151936, 1e-6, False, True),
    "2.5": (32, 4096, 32, 8, 128, 14336, 92553, 1e-5, False, False),
}
# theta, dynamic factor, trained length
ROPE = {"3": (1e6, 2.0, 32768), "3.5": (1e6, None, 40960), "2.5": (1e6, 2.0, 32768)}
IMAGE_TOKEN = {"3": 151667, "3.5": 151671, "2.5": 92546}


def published(name):
    return published_config(name)


@pytest.mark.parametrize("form", [0, 1])
@pytest.mark.parametrize("version", VERSIONS)
def test_published_values(version, form):
    raw = published(VERSIONS[version][form][0])
    config = port_for(raw).read_config(raw)
    d, v = config.decoder, config.vision
    assert DECODERS[version] == (
        d.layers, d.dim, d.heads, d.kv_heads, d.head_dim, d.mlp_dim, d.vocab, d.norm_eps,
        d.qkv_bias, d.qk_norm,
    )  # fmt: skip
    assert (d.rope.theta, d.rope.dynamic_factor, d.rope.max_positions) == ROPE[version]
    assert (d.rope.axes, d.rope.pairs, d.rope.dim) == (1, "halves", None)
    assert (v.layers, v.dim, v.heads, v.mlp_dim, v.norm_eps) == (24, 1024, 16, 4096, 1e-6)
    assert (v.image_size, v.patch, v.qkv_bias) == (448, 14, True)
    assert (config.shuffle, config.projector_in) == (2, 4096)
    t = config.tiling
    assert (t.side, t.tokens, t.min_tiles, t.max_tiles, t.thumbnail) == (448, 16, 1, 12, True)


@pytest.mark.parametrize("version", VERSIONS)
def test_both_formats_describe_the_same_model(version):
    remote, hf = (
        PORT.settle(PORT.read_config(published(name)), list(read_key_manifest(name)))
        for name, _ in VERSIONS[version]
    )
    assert remote.decoder == hf.decoder
    assert not hf.decoder.tied
    assert remote.vision == hf.vision
    assert remote.tiling == hf.tiling
    assert (remote.image_token_id, hf.image_token_id) == (None, IMAGE_TOKEN[version])


@pytest.mark.parametrize("name", [rows[0][0] for rows in VERSIONS.values()])
@pytest.mark.parametrize("theta", [1e6, 5e6, 12345.0])
def test_theta_is_read_never_assumed(name, theta):
    raw = published(name)
    raw["llm_config"]["rope_theta"] = theta
    assert PORT.read_config(raw).decoder.rope.theta == theta
    del raw["llm_config"]["rope_theta"]
    with pytest.raises(UserError, match="rope_theta"):
        PORT.read_config(raw)


@pytest.mark.parametrize("name", [rows[0][0] for rows in VERSIONS.values()])
def test_norm_epsilon_is_read_never_assumed(name):
    raw = published(name)
    raw["llm_config"]["rms_norm_eps"] = 3e-5
    assert PORT.read_config(raw).decoder.norm_eps == 3e-5
    del raw["llm_config"]["rms_norm_eps"]
    with pytest.raises(UserError, match="rms_norm_eps"):
        PORT.read_config(raw)


@pytest.mark.parametrize("version", VERSIONS)
def test_new_hf_names_are_a_layout_too(version):
    name = VERSIONS[version][1][0]
    old = read_key_manifest(name)

    def renamed(key):
        if key.startswith("language_model.lm_head"):
            return key.removeprefix("language_model.")
        return "model." + key.replace("language_model.model.", "language_model.")

    keys = {renamed(key): shape for key, shape in old.items()}
    assert "model.language_model.layers.27.mlp.up_proj.weight" in keys
    assert build_plan(fake_headers(keys), published(name), PORT, None).layout == "hf_new"


@pytest.mark.parametrize(
    ("flag", "head", "tied"),
    [
        # transformers assumes True; a head in the file overrules the assumption.
        (None, True, False),
        (True, True, False),
        (False, True, False),
        (None, False, True),
        (True, False, True),
        # A file that lacks the head although the config asks for one stays incomplete.
        (False, False, False),
    ],
)
def test_the_file_decides_about_a_tied_head(flag, head, tied):
    raw = published("internvl3-8b-hf")
    if flag is not None:
        raw["tie_word_embeddings"] = flag
    keys = [k for k in read_key_manifest("internvl3-8b-hf") if head or "lm_head" not in k]
    assert PORT.settle(PORT.read_config(raw), keys).decoder.tied is tied


def test_generation_settings_of_old_dumps_are_irrelevant():
    raw = published("internvl3-8b")
    raw["llm_config"] |= {
        "add_cross_attention": False, "bad_words_ids": None, "decoder_start_token_id": None,
        "do_sample": False, "is_decoder": False, "length_penalty": 1.0, "max_length": 20,
        "num_beams": 1, "pruned_heads": {}, "temperature": 1.0, "top_k": 50, "typical_p": 1.0,
    }  # fmt: skip
    assert PORT.read_config(raw).decoder.layers == 28


REFUSED = [
    ("internvl3-8b", "ps_version", "v1", "ps_version"),
    ("internvl3-8b", "select_layer", -4, "select_layer"),
    ("internvl3-8b", "dynamic_image_size", False, "dynamic_image_size"),
    ("internvl3-8b", "template", "Hermes-2", "template"),
    ("internvl3-8b", "downsample_ratio", 0.3, "downsample_ratio"),
    ("internvl3-8b", "force_image_size", 224, "force_image_size"),
    ("internvl3-8b", "pad2square", True, "pad2square"),
    ("internvl3-8b", "use_llm_lora", 16, "use_llm_lora"),
    ("internvl3-8b", "hidden_size", 4096, "hidden_size"),
    ("internvl3-8b", "something_new", 1, "something_new"),
    ("internvl3-8b", "min_dynamic_patch", 13, "min_dynamic_patch"),
    ("internvl3-8b", "vision_config.qk_normalization", True, "qk_normalization"),
    ("internvl3-8b", "vision_config.norm_type", "rms_norm", "norm_type"),
    ("internvl3-8b", "vision_config.hidden_act", "gelu_pytorch_tanh", "hidden_act"),
    ("internvl3-8b", "vision_config.use_moe", True, "use_moe"),
    ("internvl3-8b", "vision_config.image_size", 450, "image_size"),
    ("internvl3-8b", "llm_config.model_type", "phi3", "phi3"),
    ("internvl3-8b", "llm_config.use_sliding_window", True, "use_sliding_window"),
    ("internvl3-8b", "llm_config.rope_scaling", {"type": "yarn", "factor": 4.0}, "yarn"),
    ("internvl3-8b", "llm_config.is_decoder", True, "is_decoder"),
    ("internvl3-8b", "llm_config.quantization_config", {"bits": 4}, "quantization_config"),
    ("internvl3-8b-hf", "vision_feature_layer", -2, "vision_feature_layer"),
    ("internvl3-8b-hf", "vision_feature_select_strategy", "full", "select_strategy"),
    ("internvl3-8b-hf", "projector_hidden_act", "relu", "projector_hidden_act"),
    ("internvl3-8b-hf", "image_seq_length", 64, "image_seq_length"),
    ("internvl3-8b-hf", "vision_config.use_qk_norm", True, "use_qk_norm"),
    ("internvl3-8b-hf", "vision_config.use_mean_pooling", False, "use_mean_pooling"),
    ("internvl3-8b-hf", "vision_config.image_size", [448, 224], "image_size"),
    ("internvl3-8b-hf", "vision_config.use_mask_token", True, "use_mask_token"),
    ("internvl3-8b-hf", "text_config.model_type", "qwen3_moe", "qwen3_moe"),
    ("internvl3.5-8b", "llm_config.attention_bias", True, "attention_bias"),
    ("internvl3.5-8b", "llm_config.use_sliding_window", True, "use_sliding_window"),
    ("internvl3.5-8b", "llm_config.rope_scaling", {"type": "yarn", "factor": 4.0}, "yarn"),
    ("internvl3.5-8b", "llm_config.model_type", "qwen3_moe", "qwen3_moe"),
    ("internvl3.5-8b", "llm_config.num_experts", 128, "num_experts"),
    ("internvl3.5-8b", "flash_attn_router", 1, "flash_attn_router"),
    ("internvl3.5-8b-hf", "text_config.layer_types", ["sliding_attention"], "layer_types"),
    ("internvl2.5-8b", "llm_config.bias", True, "bias"),
    ("internvl2.5-8b", "llm_config.pretraining_tp", 2, "pretraining_tp"),
    ("internvl2.5-8b", "llm_config.hidden_act", "gelu", "hidden_act"),
    ("internvl2.5-8b", "llm_config.rope_scaling", {"type": "linear", "factor": 2.0}, "linear"),
    ("internvl2.5-8b", "template", "internlm2-chat", "template"),
    ("internvl2.5-8b-mpo-hf", "text_config.attention_bias", True, "attention_bias"),
    ("internvl2.5-8b-mpo-hf", "text_config.mlp_bias", True, "mlp_bias"),
]


@pytest.mark.parametrize(("name", "path", "value", "named"), REFUSED)
def test_refuses_what_it_cannot_honour_by_name(name, path, value, named):
    PORT.read_config(published(name))
    raw = changed(published(name), path, value)
    with pytest.raises(UserError, match=named):
        PORT.read_config(raw)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("internvl3-8b", "ps_version"),
        ("internvl3-8b", "max_dynamic_patch"),
        ("internvl3-8b", "llm_config.num_hidden_layers"),
        ("internvl3-8b", "vision_config.qkv_bias"),
        ("internvl3-8b-hf", "image_token_id"),
        ("internvl3-8b-hf", "vision_config.layer_norm_eps"),
    ],
)
def test_missing_attributes_are_named(name, path):
    raw = changed(published(name), path, ...)
    with pytest.raises(UserError, match=path.rsplit(".", 1)[-1]):
        PORT.read_config(raw)
