"""Both config formats of Qwen2.5-VL: what is read, what is refused by name, the full key table."""

import json

import pytest
import torch
from support.configs import changed
from support.key_manifest import fake_headers, read_key_manifest
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from model_ports.catalogue import published_config
from model_ports.convert.plan import build_plan
from model_ports.errors import UserError
from model_ports.registry import port_for
from model_ports.vlms.qwen2_5_vl import PORT

NAME = "qwen2.5-vl-7b"


def published():
    return published_config(NAME)


def saved():
    """The published config as transformers 5 writes it back (text_config, rope_parameters)."""
    return json.loads(Qwen2_5_VLConfig.from_dict(published()).to_json_string(use_diff=False))


def test_published_values():
    raw = published()
    assert port_for(raw) is PORT
    config = PORT.read_config(raw)
    d, v = config.decoder, config.vision
    assert (d.layers, d.dim, d.heads, d.kv_heads, d.head_dim) == (28, 3584, 28, 4, 128)
    assert (d.mlp_dim, d.vocab, d.norm_eps, d.qkv_bias, d.tied) == (
        18944,
        152064,
        1e-6,
        True,
        False,
    )
    assert (d.rope.theta, d.rope.sections, d.rope.axes) == (1e6, (16, 24, 24), 3)
    assert (v.depth, v.dim, v.heads, v.head_dim, v.mlp_dim) == (32, 1280, 16, 80, 3420)
    assert (v.patch, v.temporal, v.merge, v.window_side, v.out_dim) == (14, 2, 2, 4, 3584)
    assert (v.full_blocks, v.patch_dim, v.rope_theta) == ((7, 15, 23, 31), 1176, 1e4)
    assert config.image_token_id == 151655


def test_saved_format_is_the_same_model():
    raw = saved()
    assert "rope_parameters" in raw["text_config"]
    assert "hidden_size" not in raw
    assert PORT.read_config(raw) == PORT.read_config(published())


def test_attributes_in_both_places_must_agree():
    raw = saved()
    raw["hidden_size"] = 3584
    assert PORT.read_config(raw).decoder.dim == 3584
    raw["hidden_size"] = 2048
    with pytest.raises(UserError, match="hidden_size"):
        PORT.read_config(raw)


@pytest.mark.parametrize("where", [None, "text_config"])
def test_a_tied_head_is_found_in_either_place(where):
    raw = saved()
    (raw[where] if where else raw)["tie_word_embeddings"] = True
    assert PORT.read_config(raw).decoder.tied


def test_manifest_is_what_transformers_builds():
    with torch.device("meta"):
        config = Qwen2_5_VLConfig.from_dict(published())
        model = Qwen2_5_VLForConditionalGeneration(config)
    in_memory = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    plan = build_plan(fake_headers(in_memory), published(), PORT, None)
    assert plan.layout == "in_memory"
    renamed = {
        name.replace("model.visual.", "visual.").replace("model.language_model.", "model."): shape
        for name, shape in in_memory.items()
    }
    assert renamed == read_key_manifest(NAME)


REFUSED = [
    ("something_new", 1, "something_new"),
    ("hidden_act", "gelu", "hidden_act"),
    ("use_sliding_window", True, "use_sliding_window"),
    ("num_key_value_heads", 5, "key-value heads"),
    ("num_attention_heads", 27, "27"),
    ("head_dim", 64, "head_dim"),
    ("hidden_size", "3584", "hidden_size"),
    ("rope_scaling", {"type": "yarn", "factor": 4.0, "mrope_section": [16, 24, 24]}, "yarn"),
    ("rope_scaling", {"type": "mrope", "mrope_section": [16, 24, 20]}, "mrope_section"),
    ("rope_scaling", {"type": "mrope", "mrope_section": [32, 32]}, "mrope_section"),
    ("rope_scaling", {"type": "mrope", "mrope_section": [16, 24, 24], "beta": 1}, "beta"),
    ("rope_scaling", {"type": "mrope", "mrope_section": [16, 24, 24], "factor": 2.0}, "factor"),
    ("rope_scaling", None, "mrope_section"),
    ("rope_parameters", {"rope_theta": 5e5, "mrope_section": [16, 24, 24]}, "rope_theta"),
    ("image_token_id", 152064, "image_token_id"),
    ("vision_config.in_chans", 4, "in_chans"),
    ("vision_config.hidden_act", "quick_gelu", "hidden_act"),
    ("vision_config.out_hidden_size", 2048, "out_hidden_size"),
    ("vision_config.spatial_patch_size", 16, "spatial_patch_size"),
    ("vision_config.num_heads", 7, "num_heads"),
    ("vision_config.window_size", 27, "window_size"),
    ("vision_config.deepstack_visual_indexes", [8], "deepstack_visual_indexes"),
    ("vision_config.rope_parameters", {"rope_type": "linear", "factor": 2.0}, "rope_type"),
]


@pytest.mark.parametrize(("path", "value", "named"), REFUSED)
def test_refuses_what_it_cannot_honour_by_name(path, value, named):
    raw = changed(published(), path, value)
    with pytest.raises(UserError, match=named):
        PORT.read_config(raw)


def test_refuses_sliding_layers_and_unknown_nested_attributes():
    raw = saved()
    raw["text_config"]["layer_types"][3] = "sliding_attention"
    with pytest.raises(UserError, match="layer_types"):
        PORT.read_config(raw)
    raw = saved()
    raw["text_config"]["qk_norm"] = True
    with pytest.raises(UserError, match=r"text_config.*qk_norm"):
        PORT.read_config(raw)


@pytest.mark.parametrize(
    "path",
    [
        "hidden_size",
        "rms_norm_eps",
        "rope_theta",
        "image_token_id",
        "vision_config",
        "vision_config.fullatt_block_indexes",
        "vision_config.out_hidden_size",
        "vision_config.window_size",
    ],
)
def test_missing_attributes_are_named_and_never_defaulted(path):
    raw = changed(published(), path, ...)
    with pytest.raises(UserError, match=path.rsplit(".", 1)[-1]):
        PORT.read_config(raw)
