"""Configs of Qwen3-VL: what is read, what is refused by name, the full key table."""

import json

import pytest
import torch
from support.configs import changed
from support.key_manifest import read_key_manifest
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from model_ports.catalogue import published_config
from model_ports.errors import UserError
from model_ports.registry import port_for
from model_ports.vlms.qwen3_vl import PORT

NAME = "qwen3-vl-8b"


def published():
    return published_config(NAME)


def saved():
    """The published config as transformers 5 writes it back (rope_parameters)."""
    return json.loads(Qwen3VLConfig.from_dict(published()).to_json_string(use_diff=False))


def published_with(path, value, raw=None):
    """The published config with one attribute set; ``...`` takes it out."""
    return changed(raw or published(), path, value)


def test_published_values():
    raw = published()
    assert port_for(raw) is PORT
    config = PORT.read_config(raw)
    d, v = config.decoder, config.vision
    assert (d.layers, d.dim, d.heads, d.kv_heads, d.head_dim) == (36, 4096, 32, 8, 128)
    assert (d.mlp_dim, d.vocab, d.norm_eps) == (12288, 151936, 1e-6)
    assert (d.qkv_bias, d.qk_norm, d.post_norms, d.tied) == (False, True, False, False)
    assert (d.rope.theta, d.rope.sections, d.rope.interleaved) == (5e6, (24, 20, 20), True)
    assert (d.rope.pairs, d.rope.dim, d.rope.axes) == ("halves", None, 3)
    assert (v.depth, v.dim, v.heads, v.head_dim, v.mlp_dim) == (27, 1152, 16, 72, 4304)
    assert (v.patch, v.temporal, v.merge, v.out_dim) == (16, 2, 2, 4096)
    assert (v.side, v.deepstack, v.patch_dim, v.rope_theta) == (48, (8, 16, 24), 1536, 1e4)
    assert config.image_token_id == 151655


def test_axes_of_the_published_frequencies():
    """T, H, W in turn for 60 frequencies, and the last four to T."""
    rope = PORT.read_config(published()).decoder.rope
    assert rope.axis_of_frequency(64).tolist() == [0, 1, 2] * 20 + [0] * 4


def test_interleaved_sections_may_be_longer_than_the_frequencies():
    """As the reference's slices, which simply end: transformers' own tiny configs are so."""
    section = {"mrope_interleaved": True, "mrope_section": [16, 8, 1], "rope_type": "default"}
    rope = PORT.read_config(published_with("text_config.rope_scaling", section)).decoder.rope
    slices = [0] * 32
    slices[1:24:3] = [1] * 8
    slices[2:3:3] = [2]
    assert rope.axis_of_frequency(32).tolist() == slices
    assert rope.axis_of_frequency(4).tolist() == slices[:4]


def test_theta_is_read_and_never_assumed():
    raw = published_with("text_config.rope_theta", 1e6)
    assert PORT.read_config(raw).decoder.rope.theta == 1e6
    with pytest.raises(UserError, match="rope_theta"):
        PORT.read_config(published_with("text_config.rope_theta", ...))


def test_saved_format_is_the_same_model():
    raw = saved()
    assert "rope_parameters" in raw["text_config"]
    assert PORT.read_config(raw) == PORT.read_config(published())


@pytest.mark.parametrize("where", ["", "text_config."])
def test_a_tied_head_is_found_in_either_place(where):
    assert PORT.read_config(published_with(f"{where}tie_word_embeddings", True)).decoder.tied


def test_manifest_is_what_transformers_builds():
    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(Qwen3VLConfig.from_dict(published()))
    built = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert built == read_key_manifest(NAME)


ROPE = {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"}
REFUSED = [
    ("something_new", 1, "something_new"),
    ("hidden_size", 2048, "hidden_size"),
    ("text_config.num_experts", 128, "num_experts"),
    ("text_config.decoder_sparse_step", 1, "decoder_sparse_step"),
    ("text_config.attention_bias", True, "attention_bias"),
    ("text_config.use_sliding_window", True, "use_sliding_window"),
    ("text_config.layer_types", ["sliding_attention"] * 36, "layer_types"),
    ("text_config.hidden_act", "gelu", "hidden_act"),
    ("text_config.head_dim", ..., "head_dim"),
    ("text_config.num_key_value_heads", ..., "num_key_value_heads"),
    ("text_config.num_key_value_heads", 5, "key-value heads"),
    ("text_config.rms_norm_eps", ..., "rms_norm_eps"),
    ("text_config.rope_scaling", ROPE | {"rope_type": "yarn", "factor": 3.0}, "yarn"),
    ("text_config.rope_scaling", ROPE | {"mrope_interleaved": False}, "mrope_interleaved"),
    ("text_config.rope_scaling", ROPE | {"mrope_section": [24, -1, 20]}, "mrope_section"),
    ("text_config.rope_scaling", ROPE | {"mrope_section": [32, 32]}, "mrope_section"),
    ("text_config.rope_scaling", ROPE | {"beta_fast": 32}, "beta_fast"),
    ("text_config.rope_scaling", None, "mrope_section"),
    ("text_config", ..., "text_config"),
    ("image_token_id", 151936, "image_token_id"),
    ("image_token_id", ..., "image_token_id"),
    ("vision_config", ..., "vision_config"),
    ("vision_config.hidden_act", "gelu", "hidden_act"),
    ("vision_config.in_channels", 1, "in_channels"),
    ("vision_config.num_heads", 7, "num_heads"),
    ("vision_config.out_hidden_size", 3584, "out_hidden_size"),
    ("vision_config.num_position_embeddings", 2305, "num_position_embeddings"),
    ("vision_config.num_position_embeddings", ..., "num_position_embeddings"),
    ("vision_config.deepstack_visual_indexes", ..., "deepstack_visual_indexes"),
    ("vision_config.deepstack_visual_indexes", [8, 16, 27], "deepstack_visual_indexes"),
    ("vision_config.deepstack_visual_indexes", [16, 8], "deepstack_visual_indexes"),
    ("vision_config.deepstack_visual_indexes", ["8"], "deepstack_visual_indexes"),
    ("vision_config.spatial_merge_size", 0, "merge"),
    ("vision_config.window_size", 112, "window_size"),
    ("vision_config.rope_parameters", {"rope_type": "linear", "factor": 2.0}, "rope_type"),
]


@pytest.mark.parametrize(("path", "value", "named"), REFUSED)
def test_refuses_what_it_cannot_honour_by_name(path, value, named):
    with pytest.raises(UserError, match=named):
        PORT.read_config(published_with(path, value))


def test_the_mixture_of_experts_has_no_port():
    with pytest.raises(UserError, match="qwen3_vl_moe"):
        port_for({"model_type": "qwen3_vl_moe"})


def test_boxes_are_in_thousandths_of_the_stored_image():
    text = PORT.box.template.format(x0=1, y0=2, x1=300, y1=1000, label="red")
    assert json.loads(text.removeprefix("```json\n").removesuffix("\n```")) == [
        {"bbox_2d": [1, 2, 300, 1000], "label": "red"}
    ]
    box = PORT.box.pixels((0, 500, 250, 1000), (640, 480), (640, 480))
    assert box == pytest.approx((0, 240, 160, 480))
