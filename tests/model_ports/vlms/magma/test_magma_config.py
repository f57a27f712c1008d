"""Magma's config.json, its layout on disk, and the full-size key table."""

import re

import pytest
from safetensors.numpy import load_file, save_file
from support.configs import changed
from support.key_manifest import fake_headers, read_key_manifest
from support.magma import TINY, MagmaPair

from model_ports.catalogue import published_config
from model_ports.convert.load import load_model
from model_ports.convert.plan import build_plan
from model_ports.errors import UserError
from model_ports.images.stretched import Stretched
from model_ports.registry import port_for
from model_ports.vlms.magma import PORT, config

TRUNK = "vision_tower.clip_vision_model.trunk."


def published():
    return published_config("magma-8b")


def test_published_values():
    raw = published()
    read = port_for(raw).read_config(raw)
    d, v = read.decoder, read.vision
    assert (d.layers, d.dim, d.heads, d.kv_heads, d.head_dim) == (32, 4096, 32, 8, 128)
    assert (d.mlp_dim, d.vocab, d.norm_eps, d.qkv_bias, d.tied) == (
        14336,
        128261,
        1e-5,
        False,
        False,
    )
    assert (d.rope.theta, d.rope.dynamic_factor, d.rope.axes) == (5e5, None, 1)
    assert (v.dims, v.depths) == ((384, 768, 1536, 3072), (3, 4, 30, 3))
    assert (v.norm_eps, v.stride) == (1e-5, 32)
    assert read.crops == Stretched(side=512, tokens=16, max_crops=4)
    assert read.image_token_id == 128257


def test_unused_tensors_are_tolerated():
    keys = read_key_manifest("magma-8b")
    more = {
        "vision_tower.clip_vision_model.head.proj.weight": (1024, 3072),
        "multi_modal_projector.img_start_seperator": (1, 4096),
        "multi_modal_projector.img_end_seperator": (1, 4096),
    }
    plan = build_plan(fake_headers(keys | more), published(), PORT, None)
    assert set(more) < set(plan.skipped)
    fewer = {k: s for k, s in keys.items() if "head.norm" not in k}
    assert build_plan(fake_headers(fewer), published(), PORT, None).skipped == ()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(config.BACKBONES, "convnexttiny", TINY)
        yield MagmaPair.make(tmp_path_factory.mktemp("magma_config"), seed=5)


def test_layer_scales_lost_by_old_transformers_are_refused(pair, tmp_path):
    """transformers 4.48 renames ``gamma`` to ``weight`` and leaves the real ones unset."""
    tensors = load_file(pair.folder / "model.safetensors")
    broken = {re.sub(r"\.gamma$", ".weight", name): value for name, value in tensors.items()}
    for file in pair.folder.glob("*.json"):
        (tmp_path / file.name).write_text(file.read_text())
    save_file(broken, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="gamma"):
        load_model(tmp_path)


REFUSED = [
    ("image_token_index", 128261, "image_token_index"),
    ("img_size", 640, "img_size"),
    ("something_new", 1, "something_new"),
    # Repeated at the top, where it must mean the same.
    ("hidden_size", 2048, "hidden_size"),
    ("rope_theta", 10000.0, "rope_theta"),
    ("num_hidden_layers", 40, "num_hidden_layers"),
    ("attention_bias", True, "attention_bias"),
    ("text_config.model_type", "mistral", "mistral"),
    ("text_config.tie_word_embeddings", True, "tie_word_embeddings"),
    ("text_config.rope_scaling", {"rope_type": "linear", "factor": 2.0}, "linear"),
    ("text_config.sliding_window", 4096, "sliding_window"),
    ("vision_config.vision_backbone", "convnextlarge", "vision_backbone"),
    ("vision_config.mm_projector_type", "linear", "mm_projector_type"),
    ("vision_config.mm_projector_type", "mlp3x_gelu", "mm_projector_type"),
    ("vision_config.img_anyres_strategy", "global", "img_anyres_strategy"),
    ("vision_config.vision_feature_layer", "res4", "vision_feature_layer"),
    ("vision_config.mm_hidden_size", 1536, "mm_hidden_size"),
    ("vision_config.img_size", 500, "500"),
    ("vision_config.max_num_crops", 0, "crop"),
    ("vision_config.mm_use_row_seperator", False, "row_seperator"),
    ("vision_config.proj_vis_to_txt_tokens", True, "proj_vis_to_txt_tokens"),
    ("vision_config.use_q_former", True, "use_q_former"),
]


@pytest.mark.parametrize(("path", "value", "named"), REFUSED)
def test_refuses_what_it_cannot_honour_by_name(path, value, named):
    raw = changed(published(), path, value)
    with pytest.raises(UserError, match=named):
        PORT.read_config(raw)


@pytest.mark.parametrize(
    "path", ["image_token_index", "text_config", "vision_config", "vision_config.mm_projector_type"]
)
def test_missing_attributes_are_named(path):
    raw = changed(published(), path, ...)
    with pytest.raises(UserError, match=path.rsplit(".", 1)[-1]):
        PORT.read_config(raw)


def test_what_may_be_left_out_or_differ():
    """Defaults of Llama's class, the copies at the top, and the projector's other name."""
    raw = published()
    plain = PORT.read_config(raw)
    for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "hidden_act"):
        del raw["text_config"][name]
    assert PORT.read_config(raw) == plain
    for name in set(raw["text_config"]) & set(raw) - {"model_type", "tie_word_embeddings"}:
        del raw[name]
    raw["vision_config"]["mm_projector_type"] = "mlp2x_gelu_segtokv9"
    assert PORT.read_config(raw) == plain
