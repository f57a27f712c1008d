"""Configs of GLM-4.6V-Flash: what is read, what is refused by name, the full key table."""

import json

import pytest
import torch
from support.configs import changed
from support.key_manifest import read_key_manifest
from transformers import Glm4vConfig, Glm4vForConditionalGeneration

from model_ports.catalogue import published_config
from model_ports.errors import UserError
from model_ports.registry import port_for
from model_ports.vlms.glm4v import PORT

NAME = "glm-4.6v-flash"


def published():
    return published_config(NAME)


def published_with(path, value):
    """The published config with one attribute set; ``...`` takes it out."""
    return changed(published(), path, value)


def test_published_values():
    raw = published()
    assert port_for(raw) is PORT
    config = PORT.read_config(raw)
    d, v = config.decoder, config.vision
    assert (d.layers, d.dim, d.heads, d.kv_heads, d.head_dim) == (40, 4096, 32, 2, 128)
    assert (d.mlp_dim, d.vocab, d.norm_eps) == (13696, 151552, 1e-5)
    assert (d.qkv_bias, d.post_norms, d.qk_norm, d.tied) == (True, True, False, False)
    assert (d.rope.sections, d.rope.dim, d.rope.pairs) == ((8, 12, 12), 64, "adjacent")
    assert not d.rope.interleaved
    assert (v.depth, v.dim, v.heads, v.head_dim) == (24, 1536, 12, 128)
    assert (v.out_dim, v.merger_dim, v.side, v.norm_eps) == (4096, 13696, 24, 1e-5)
    assert (v.patch, v.temporal, v.merge, v.patch_dim, v.rope_theta) == (14, 2, 2, 1176, 1e4)
    assert config.image_token_id == 151363
    assert config.end_tokens == (151329, 151336, 151338, 151348)


def test_theta_is_read_and_never_assumed():
    params = published()["text_config"]["rope_parameters"]
    raw = published_with("text_config.rope_parameters", params | {"rope_theta": 5e5})
    assert PORT.read_config(raw).decoder.rope.theta == 5e5
    del params["rope_theta"]
    with pytest.raises(UserError, match="rope_theta"):
        PORT.read_config(published_with("text_config.rope_parameters", params))


def test_rotary_settings_of_transformers_4_and_saved_files():
    raw = published()
    text = raw["text_config"]
    text |= {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    text["rope_scaling"] = {"type": "default", "mrope_section": [8, 12, 12]}
    del text["rope_parameters"]
    config = PORT.read_config(published())
    assert PORT.read_config(raw) == config
    saved = json.loads(Glm4vConfig.from_dict(published()).to_json_string(use_diff=False))
    assert PORT.read_config(saved) == config
    assert PORT.read_config(published_with("model_type", "glm46v")) == config


def test_end_tokens_in_either_place():
    raw = published_with("text_config.eos_token_id", 7)
    assert PORT.read_config(raw).end_tokens == (7,)
    raw["eos_token_id"] = [9, 7]
    assert PORT.read_config(raw).end_tokens == (7, 9)


def test_manifest_is_what_transformers_builds():
    with torch.device("meta"):
        model = Glm4vForConditionalGeneration(Glm4vConfig.from_dict(published()))
    built = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert built == read_key_manifest(NAME)


REFUSED = [
    ("something_new", 1, "something_new"),
    ("text_config.n_routed_experts", 128, "n_routed_experts"),
    ("text_config.model_type", "glm4v_moe_text", "glm4v_moe_text"),
    ("text_config.use_qk_norm", True, "use_qk_norm"),
    ("text_config.attention_bias", False, "attention_bias"),
    ("text_config.hidden_act", "gelu", "hidden_act"),
    ("text_config.num_key_value_heads", 5, "key-value heads"),
    ("text_config.head_dim", 64, "head_dim"),
    ("text_config.sliding_window", 512, "sliding_window"),
    ("text_config.rope_parameters.rope_type", "yarn", "yarn"),
    ("text_config.rope_parameters.mrope_section", [16, 24, 24], "mrope_section"),
    ("text_config.rope_parameters.partial_rotary_factor", 1.0, "mrope_section"),
    ("text_config.rope_parameters.partial_rotary_factor", ..., "partial_rotary_factor"),
    ("text_config.partial_rotary_factor", 0.25, "partial_rotary_factor"),
    ("image_token_id", 151552, "image_token_id"),
    ("image_token_id", ..., "image_token_id"),
    ("text_config.eos_token_id", [151329, 151552], "eos_token_id"),
    ("text_config.eos_token_id", ["a"], "eos_token_id"),
    ("text_config", ..., "text_config"),
    ("text_config.rms_norm_eps", ..., "rms_norm_eps"),
    ("vision_config", ..., "vision_config"),
    ("vision_config.image_size", ..., "image_size"),
    ("vision_config.out_hidden_size", 2048, "out_hidden_size"),
    ("vision_config.attention_bias", True, "attention_bias"),
    ("vision_config.in_channels", 4, "in_channels"),
    ("vision_config.num_heads", 7, "num_heads"),
    ("vision_config.spatial_merge_size", 0, "merge"),
    ("vision_config.deepstack_visual_indexes", [8], "deepstack_visual_indexes"),
    ("vision_config.model_type", "glm_ocr_vision", "glm_ocr_vision"),
]


@pytest.mark.parametrize(("path", "value", "named"), REFUSED)
def test_refuses_what_it_cannot_honour_by_name(path, value, named):
    with pytest.raises(UserError, match=named):
        PORT.read_config(published_with(path, value))


@pytest.mark.parametrize("kind", ["glm4v_moe", "glm_ocr", "glm4", "chatglm"])
def test_relatives_have_no_port(kind):
    with pytest.raises(UserError, match=kind):
        port_for(published_with("model_type", kind))
