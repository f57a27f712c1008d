"""Phi-4-Reasoning-Vision's config.json: what is read, what is refused by name, and the full-size
key table."""

from typing import Any

import pytest
import torch
from support.configs import changed
from support.key_manifest import read_key_manifest
from support.phi4_rv import PROJECTOR, TOWER, Reference

from model_ports.catalogue import published_config
from model_ports.errors import UserError
from model_ports.registry import port_for
from model_ports.vlms.phi4_rv import PORT

NAME = "phi-4-reasoning-vision-15b"


def published_with(path: str, value: Any) -> dict[str, Any]:
    """The published config with one attribute set; ``...`` takes it out."""
    return changed(published_config(NAME), path, value)


def test_published_values() -> None:
    raw = published_config(NAME)
    assert port_for(raw) is PORT
    config = PORT.read_config(raw)
    d, v = config.decoder, config.vision
    shape = (d.layers, d.dim, d.heads, d.kv_heads, d.head_dim, d.mlp_dim, d.vocab)
    assert shape == (40, 5120, 40, 10, 128, 17920, 100352)
    assert (d.norm_eps, d.rope.theta, d.rope.pairs, d.rope.dim) == (1e-5, 5e5, "halves", 128)
    assert (d.scale, d.windows, d.act) == (128**-0.5, (), "silu")
    assert not (d.tied or d.qkv_bias or d.qk_norm or d.norm_offset or d.post_norms)
    assert (v.layers, v.dim, v.heads, v.mlp_dim, v.norm_eps) == (27, 1152, 16, 4304, 1e-6)
    assert (v.side, v.patch, v.pooling, config.vision_blocks) == (16, 16, True, 26)
    assert (config.pixels.patch, config.pixels.low, config.pixels.high) == (16, 256, 3600)
    assert config.max_length == 8192


def test_formats_of_other_writers() -> None:
    """Rotary settings as transformers 5 keeps them, and left-out values are the same config."""
    raw = published_config(NAME)
    config = PORT.read_config(raw)
    rope = {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 1.0}
    for name in ("rope_theta", "rope_scaling", "partial_rotary_factor"):
        del raw[name]
    assert PORT.read_config(raw | {"rope_parameters": rope}) == config
    del rope["partial_rotary_factor"]
    assert PORT.read_config(raw | {"rope_parameters": rope}) == config
    for name in ("min_num_patches", "max_num_patches", "use_s2", "tie_word_embeddings"):
        assert PORT.read_config(published_with(name, ...)) == config
    vision = {
        "patch_size": 16, "num_patches": 256, "layer_norm_eps": 1e-6, "num_channels": 3,
        "hidden_act": "gelu_pytorch_tanh", "attention_dropout": 0.0, "vision_use_head": True,
    }  # fmt: skip
    whole = vision | raw["vision_config"]
    assert PORT.read_config(published_with("vision_config", whole)) == config


def test_values_that_differ_are_read() -> None:
    raw = published_with("mm_vision_tower", "google/siglip2-so400m-patch14-naflex")
    config = PORT.read_config(raw)
    assert (config.vision.patch, config.pixels.patch) == (14, 14)
    assert PORT.read_config(published_with("partial_rotary_factor", 0.75)).decoder.rope.dim == 96
    assert PORT.read_config(published_with("tokenizer_model_max_length", None)).max_length is None
    assert not PORT.read_config(
        published_with("vision_config.vision_use_head", False)
    ).vision.pooling


def test_manifest_is_what_transformers_builds() -> None:
    with torch.device("meta"):
        model = Reference(published_config(NAME))
    named = {
        **model.language.state_dict(),
        **{TOWER + name: value for name, value in model.vision.state_dict().items()},
        **{PROJECTOR + name: value for name, value in model.projector.state_dict().items()},
    }
    built = {name: tuple(value.shape) for name, value in named.items()}
    assert built == read_key_manifest(NAME)


REFUSED = [
    ("something_new", 1, "something_new"),
    ("attention_bias", True, "attention_bias"),
    ("hidden_act", "gelu", "hidden_act"),
    ("sliding_window", 2047, "sliding_window"),
    ("rope_scaling", {"type": "longrope", "short_factor": [1.0]}, "longrope"),
    ("partial_rotary_factor", "1", "partial_rotary_factor"),
    ("rope_theta", ..., "rope_theta"),
    ("num_key_value_heads", 7, "key-value heads"),
    ("hidden_size", ..., "hidden_size"),
    ("rms_norm_eps", ..., "rms_norm_eps"),
    ("vocab_size", "100352", "vocab_size"),
    ("mm_projector_type", "mlp3x_gelu", "mm_projector_type"),
    ("mm_hidden_size", 1024, "mm_hidden_size"),
    ("use_s2", True, "use_s2"),
    ("use_mm_proj", False, "use_mm_proj"),
    ("mm_vision_tower", "google/siglip-so400m-patch14-384", "mm_vision_tower"),
    ("mm_vision_tower", "google/siglip2-so400m-patch16-512", "NaFlex"),
    ("mm_vision_tower", ..., "mm_vision_tower"),
    ("min_num_patches", 4000, "min_num_patches"),
    ("min_num_patches", 0, "min_num_patches"),
    ("tokenizer_model_max_length", "8192", "tokenizer_model_max_length"),
    ("vision_config", ..., "vision_config"),
    ("vision_config.hidden_size", ..., "hidden_size"),
    ("vision_config.num_hidden_layers", ..., "num_hidden_layers"),
    ("vision_config.num_hidden_layers", 1, "second-last"),
    ("vision_config.hidden_size", 1024, "mm_hidden_size"),
    ("vision_config.num_patches", 255, "num_patches"),
    ("vision_config.hidden_act", "gelu", "hidden_act"),
    ("vision_config.use_rope", True, "vision_config.*use_rope"),
    ("vision_config.model_type", "siglip_vision_model", "siglip_vision_model"),
]


@pytest.mark.parametrize(("path", "value", "named"), REFUSED)
def test_refuses_what_it_cannot_honour_by_name(path: str, value: Any, named: str) -> None:
    with pytest.raises(UserError, match=named):
        PORT.read_config(published_with(path, value))


@pytest.mark.parametrize("kind", ["phi3", "phi4mm", "phi4_multimodal", "phi3_v"])
def test_relatives_have_no_port(kind: str) -> None:
    with pytest.raises(UserError, match=kind):
        port_for(published_with("model_type", kind))
