"""The same weights in every on-disk layout give the same parameters."""

import json
import re

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file
from support.internvl import make_tiny, write_tokenizer

from model_ports.convert.load import load_model
from model_ports.errors import UserError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("internvl_layouts"), seed=5)


# transformers' names -> those of the original repositories, after fusing q, k and v.
STEM, NEW_STEM = r"^vision_tower\.embeddings\.", "vision_model.embeddings."
RENAMES = (
    (rf"{STEM}cls_token", f"{NEW_STEM}class_embedding"),
    (rf"{STEM}position_embeddings", f"{NEW_STEM}position_embedding"),
    (rf"{STEM}patch_embeddings\.projection", f"{NEW_STEM}patch_embedding"),
    (r"^vision_tower\.encoder\.layer\.", "vision_model.encoder.layers."),
    (r"\.attention\.projection_layer\.", ".attn.proj."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.lambda_([12])$", r".ls\1"),
    (r"^multi_modal_projector\.layer_norm\.", "mlp1.0."),
    (r"^multi_modal_projector\.linear_1\.", "mlp1.1."),
    (r"^multi_modal_projector\.linear_2\.", "mlp1.3."),
)


def renamed(key):
    for pattern, new in RENAMES:
        key = re.sub(pattern, new, key)
    return key


def remote_tensors(tensors):
    apart = re.compile(r"(.*)\.attention\.([qkv])_proj\.(weight|bias)")
    out = {renamed(k): v for k, v in tensors.items() if not apart.fullmatch(k)}
    for block, part, kind in (m.groups() for m in map(apart.fullmatch, tensors) if m):
        if part == "q":
            parts = [tensors[f"{block}.attention.{p}_proj.{kind}"] for p in "qkv"]
            out[renamed(f"{block}.attn.qkv.{kind}")] = np.concatenate(parts)
    return out


def remote_config(raw):
    vision, text = raw["vision_config"], raw["text_config"]
    rope = text["rope_parameters"]
    llm = {k: text[k] for k in text if k not in {"rope_parameters", "tie_word_embeddings"}}
    llm |= {"rope_theta": rope["rope_theta"], "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    same = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
            "layer_norm_eps", "hidden_act", "norm_type")  # fmt: skip
    return {
        "model_type": "internvl_chat", "downsample_ratio": 0.5, "dynamic_image_size": True,
        "force_image_size": 84, "llm_config": llm, "max_dynamic_patch": 6, "ps_version": "v2",
        "select_layer": -1, "template": "internvl2_5", "use_thumbnail": True,
        "vision_config": {
            "model_type": "intern_vit_6b", "image_size": 84, "patch_size": 14, "qkv_bias": True,
            "qk_normalization": False, **{name: vision[name] for name in same},
        },
    }  # fmt: skip


def write_folder(folder, raw, tensors):
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(raw))
    save_file(
        {k: np.ascontiguousarray(v) for k, v in tensors.items()}, folder / "model.safetensors"
    )


def assert_same_params(model, expected):
    ours = jax.tree_util.tree_leaves_with_path(model.params)
    theirs = dict(jax.tree_util.tree_leaves_with_path(expected))
    assert len(ours) == len(theirs)
    for path, leaf in ours:
        np.testing.assert_array_equal(np.asarray(leaf), theirs[path], err_msg=str(path))


def test_folder_written_by_transformers(tiny):
    model = load_model(tiny.folder, name="tiny")
    assert model.config == tiny.config
    assert model.processor.tiling.max_tiles == 6
    assert_same_params(model, tiny.params)


def test_original_repository(tiny, tmp_path):
    raw = json.loads((tiny.folder / "config.json").read_text())
    write_folder(tmp_path, remote_config(raw), remote_tensors(tiny.tensors))
    model = load_model(tmp_path, name="tiny")
    assert model.config.file_format == "remote"
    assert model.config.decoder == tiny.config.decoder
    assert model.config.vision == tiny.config.vision
    assert_same_params(model, tiny.params)


def test_new_names(tiny, tmp_path):
    raw = json.loads((tiny.folder / "config.json").read_text())
    state = {k: v.numpy() for k, v in tiny.reference.state_dict().items()}
    assert "model.language_model.embed_tokens.weight" in state
    write_folder(tmp_path, raw, state)
    assert_same_params(load_model(tmp_path, name="tiny"), tiny.params)


def test_head_of_its_own_beats_the_default_flag(tiny, tmp_path):
    raw = json.loads((tiny.folder / "config.json").read_text())
    del raw["tie_word_embeddings"]  # transformers' default is True
    write_folder(tmp_path, raw, tiny.tensors)
    model = load_model(tmp_path, name="tiny")
    assert not model.decoder.tied
    assert_same_params(model, tiny.params)


def test_tied_checkpoint(tmp_path):
    tied = make_tiny(tmp_path / "tied", seed=6, tied=True)
    assert "language_model.lm_head.weight" not in tied.tensors
    model = load_model(tied.folder, name="tied")
    assert model.decoder.tied
    assert "lm_head" not in model.params["decoder"]
    assert_same_params(model, tied.params)


def test_file_without_head_is_refused_if_the_config_wants_one(tiny, tmp_path):
    raw = json.loads((tiny.folder / "config.json").read_text())
    assert raw["tie_word_embeddings"] is False
    tensors = {k: v for k, v in tiny.tensors.items() if "lm_head" not in k}
    write_folder(tmp_path, raw, tensors)
    with pytest.raises(UserError, match="lm_head"):
        load_model(tmp_path)
