"""Both config formats, every layout on disk, and full-size key tables."""

import dataclasses
import json
import re

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.configs import changed
from support.key_manifest import fake_headers, read_key_manifest
from support.llava import LLAMA3, LLAMA3_TEMPLATE, LlavaPair, write_tokenizer

from model_ports.catalogue import published_config
from model_ports.convert.load import load_model
from model_ports.convert.plan import build_plan
from model_ports.errors import UserError
from model_ports.images.anyres import AnyRes
from model_ports.registry import port_for
from model_ports.vlms.llava_next import PORT, config
from model_ports.vlms.llava_next.config import PINPOINTS

NAMES = ("llava-next-llama3-8b-hf", "llava-next-llama3-8b")


def published(name):
    return published_config(name)


@pytest.mark.parametrize(("name", "vocab"), [(NAMES[0], 128320), (NAMES[1], 128256)])
def test_published_values(name, vocab):
    raw = published(name)
    read = port_for(raw).read_config(raw)
    d, v = read.decoder, read.vision
    assert (d.layers, d.dim, d.heads, d.kv_heads, d.head_dim) == (32, 4096, 32, 8, 128)
    assert (d.mlp_dim, d.vocab, d.norm_eps, d.qkv_bias, d.tied) == (
        14336,
        vocab,
        1e-5,
        False,
        False,
    )
    assert (d.rope.theta, d.rope.dynamic_factor, d.rope.axes) == (5e5, None, 1)
    assert (v.layers, v.dim, v.heads, v.mlp_dim, v.norm_eps) == (24, 1024, 16, 4096, 1e-5)
    assert (v.image_size, v.patch, v.side, read.vision_blocks) == (336, 14, 24, 23)
    assert read.crops == AnyRes(side=336, tokens=24, pinpoints=PINPOINTS)
    assert read.crops.lineage == "hf"


def test_formats_differ_in_the_added_tokens_only():
    hf, original = (PORT.read_config(published(name)) for name in NAMES)
    assert (hf.image_token_id, original.image_token_id) == (128256, None)
    assert dataclasses.replace(hf.decoder, vocab=original.decoder.vocab) == original.decoder
    assert hf.vision == original.vision


def renamed(key, layout):
    """A published name in another layout."""
    if layout == "saved":
        return key.replace("vision_model.", "")
    if layout == "in_memory":
        key = key.replace("vision_model.", "")
    if key.startswith("language_model.lm_head"):
        return key.removeprefix("language_model.")
    return "model." + key.replace("language_model.model.", "language_model.")


@pytest.mark.parametrize("layout", ["saved", "in_memory", "in_memory_4"])
def test_other_layouts_of_transformers(layout):
    keys = read_key_manifest(NAMES[0])
    named = {renamed(key, layout): shape for key, shape in keys.items()}
    assert len(named) == 687
    assert build_plan(fake_headers(named), published(NAMES[0]), PORT, None).layout == layout


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return LlavaPair.make(tmp_path_factory.mktemp("llava_layouts"), seed=5)


def assert_same_params(model, pair, vocab=None):
    ours = jax.tree_util.tree_leaves_with_path(model.params)
    theirs = dict(jax.tree_util.tree_leaves_with_path(pair.params))
    assert len(ours) == len(theirs)
    for path, leaf in ours:
        want = np.asarray(theirs[path])
        if vocab and want.shape != leaf.shape:  # the original vocabulary ends before <image>
            axis = want.shape.index(pair.config.decoder.vocab)
            want = np.take(want, range(vocab), axis)
        np.testing.assert_array_equal(np.asarray(leaf), want, err_msg=str(path))


def original_key(key):
    key = re.sub(r"^language_model\.(model\.)?", r"\1", key)
    key = re.sub(r"^vision_tower\.", "model.vision_tower.vision_tower.vision_model.", key)
    key = re.sub(r"^multi_modal_projector\.linear_1", "model.mm_projector.0", key)
    key = re.sub(r"^multi_modal_projector\.linear_2", "model.mm_projector.2", key)
    return re.sub(r"^image_newline", "model.image_newline", key)


def test_original_repository(pair, tmp_path, monkeypatch):
    """No token for images: the vocabulary is smaller, and places of images hold token 0."""
    monkeypatch.setattr(config, "TOWERS", {"clip-tiny": pair.config.vision})
    raw = published(NAMES[1])
    text = json.loads((pair.folder / "config.json").read_text())["text_config"]
    raw |= {name: text[name] for name in set(raw) & set(text) - {"model_type", "rope_scaling"}}
    ids = write_tokenizer(tmp_path, LLAMA3_TEMPLATE, LLAMA3)
    vocab = max(ids.values()) + 1
    raw |= {"mm_vision_tower": "somewhere/clip-tiny", "mm_hidden_size": 32, "vocab_size": vocab}
    raw |= {"image_grid_pinpoints": [list(p) for p in pair.config.crops.pinpoints]}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    tensors = load_file(pair.folder / "model.safetensors")
    for name in [n for n in tensors if "embed_tokens" in n or "lm_head" in n]:
        tensors[name] = np.ascontiguousarray(tensors[name][:vocab])
    save_file({original_key(k): v for k, v in tensors.items()}, tmp_path / "model.safetensors")
    model = load_model(tmp_path, name="tiny")
    assert model.config.file_format == "original"
    assert_same_params(model, pair, vocab)


def test_tied_checkpoint(tmp_path):
    pair = LlavaPair.make(tmp_path, seed=6, tied=True)
    model = load_model(tmp_path, name="tied")
    assert model.decoder.tied
    assert "lm_head" not in model.params["decoder"]
    assert_same_params(model, pair)


REFUSED = [
    (0, "projector_hidden_act", "relu", "projector_hidden_act"),
    (0, "multimodal_projector_bias", False, "multimodal_projector_bias"),
    (0, "vision_feature_select_strategy", "full", "select_strategy"),
    (0, "vision_feature_layer", [-2, -1], "vision_feature_layer"),
    (0, "vision_feature_layer", -26, "vision_feature_layer"),
    (0, "vision_feature_layer", 0, "vision_feature_layer"),
    (0, "use_image_newline_parameter", False, "newline"),
    (0, "image_seq_length", 144, "image_seq_length"),
    (0, "image_grid_pinpoints", [[336, 500]], "image_grid_pinpoints"),
    (0, "image_grid_pinpoints", [336, 672], "image_grid_pinpoints"),
    (0, "image_token_index", 128320, "image_token_index"),
    (0, "something_new", 1, "something_new"),
    (0, "quantization_config", {"bits": 4}, "quantization_config"),
    (0, "text_config.model_type", "mistral", "mistral"),
    (0, "text_config.tie_word_embeddings", True, "tie_word_embeddings"),
    (0, "text_config.rope_scaling", {"rope_type": "llama3", "factor": 8.0}, "factor|llama3"),
    (0, "text_config.attention_bias", True, "attention_bias"),
    (0, "text_config.sliding_window", 4096, "sliding_window"),
    (0, "vision_config.model_type", "siglip_vision_model", "siglip"),
    (0, "vision_config.hidden_act", "gelu", "hidden_act"),
    (0, "vision_config.image_size", 335, "image_size"),
    (0, "vision_config.use_head", True, "use_head"),
    (1, "image_aspect_ratio", "pad", "image_aspect_ratio"),
    (1, "mm_patch_merge_type", "flat", "mm_patch_merge_type"),
    (1, "mm_projector_type", "linear", "mm_projector_type"),
    (1, "mm_vision_select_feature", "cls_patch", "mm_vision_select_feature"),
    (1, "mm_vision_tower", "google/siglip-so400m-patch14-384", "siglip"),
    (1, "mm_hidden_size", 1152, "mm_hidden_size"),
    (1, "mm_use_im_start_end", True, "mm_use_im_start_end"),
    (1, "mm_resampler_type", "perceiver", "mm_resampler_type"),
    (1, "mlp_bias", True, "mlp_bias"),
]


@pytest.mark.parametrize(("which", "path", "value", "named"), REFUSED)
def test_refuses_what_it_cannot_honour_by_name(which, path, value, named):
    raw = changed(published(NAMES[which]), path, value)
    with pytest.raises(UserError, match=named):
        PORT.read_config(raw)


@pytest.mark.parametrize(
    ("which", "path"),
    [
        (0, "image_token_index"), (0, "vision_feature_layer"), (0, "text_config"),
        (0, "vision_config.num_hidden_layers"), (1, "mm_vision_tower"), (1, "hidden_size"),
        (1, "mm_vision_select_layer"),
    ],
)  # fmt: skip
def test_missing_attributes_are_named(which, path):
    raw = changed(published(NAMES[which]), path, ...)
    with pytest.raises(UserError, match=path.rsplit(".", 1)[-1]):
        PORT.read_config(raw)


def test_left_out_values_are_those_of_transformers():
    """The published nested configs lack what equals the class's defaults."""
    from transformers import LlamaConfig

    from model_ports.backbones.llama import DEFAULTS

    known = LlamaConfig().to_dict()
    assert {name: known[name] for name in DEFAULTS} == dict(DEFAULTS)
    raw = published(NAMES[0])
    assert "hidden_size" not in raw["text_config"]
    raw["text_config"] |= {"hidden_size": 2048, "num_attention_heads": 16}
    assert PORT.read_config(raw).decoder.dim == 2048
