"""The same weights in every on-disk layout give the same parameters."""

import json

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file
from support.internvl import LANGUAGE, make_tiny, published, write_folder

from model_ports.convert.export import export_folder
from model_ports.convert.load import load_model
from model_ports.convert.plan import plan_folder
from model_ports.convert.save import save
from model_ports.convert.verify import describe, verify_folder
from model_ports.errors import UserError


@pytest.fixture(scope="module", params=LANGUAGE)
def tiny(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"layouts_{request.param}")
    return make_tiny(folder, seed=5, backbone=request.param)


def config_of(tiny):
    return json.loads((tiny.folder / "config.json").read_text())


def assert_same_params(model, expected):
    ours = jax.tree_util.tree_leaves_with_path(model.params)
    theirs = dict(jax.tree_util.tree_leaves_with_path(expected))
    assert len(ours) == len(theirs)
    for path, leaf in ours:
        np.testing.assert_array_equal(np.asarray(leaf), theirs[path], err_msg=str(path))


def test_original_repository(tiny, tmp_path):
    model = published(tiny, tmp_path)
    assert model.config.file_format == "remote"
    assert model.config.decoder == tiny.config.decoder
    assert model.config.vision == tiny.config.vision
    assert_same_params(model, tiny.params)


def test_head_of_its_own_beats_the_default_flag(tiny, tmp_path):
    raw = config_of(tiny)
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
    raw = config_of(tiny)
    assert raw["tie_word_embeddings"] is False
    tensors = {k: v for k, v in tiny.tensors.items() if "lm_head" not in k}
    write_folder(tmp_path, raw, tensors)
    with pytest.raises(UserError, match="lm_head"):
        load_model(tmp_path)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_original_repository_converted_verified_and_exported(tiny, tmp_path, dtype):
    """wqkv goes through the conversion and comes back bit for bit."""
    tensors = published(tiny, tmp_path / "source").tensors
    save(plan_folder(tmp_path / "source", dtype=dtype), tmp_path / "out")
    for against in ("source", "checksums"):
        result = verify_folder(tmp_path / "out", logits=False)
        assert result["ok"], describe(result)
        assert result["against"] == against
        if against == "source":
            (tmp_path / "source").rename(tmp_path / "moved")
    if dtype is None:
        assert_same_params(load_model(tmp_path / "out"), tiny.params)
    report = export_folder(tmp_path / "out", tmp_path / "back")
    assert report["layout"] == "remote"
    back = load_file(tmp_path / "back/model.safetensors")
    assert sorted(back) == sorted(tensors)
    for name, value in tensors.items():
        expected = value if dtype is None else value.astype(ml_dtypes.bfloat16)
        assert back[name].tobytes() == expected.tobytes(), name
    # In transformers' names, as transformers wrote them.
    export_folder(tmp_path / "out", tmp_path / "hf", layout="hf_old")
    renamed = load_file(tmp_path / "hf/model.safetensors")
    assert set(renamed) == set(tiny.tensors)
    for name, value in tiny.tensors.items():
        expected = value if dtype is None else value.astype(ml_dtypes.bfloat16)
        assert renamed[name].tobytes() == expected.tobytes(), name


def test_a_changed_value_is_found_and_located(tiny, tmp_path):
    """The row that verify names is the row of the file, also within grouped rows."""
    tensors = published(tiny, tmp_path / "source").tensors
    save(plan_folder(tmp_path / "source"), tmp_path / "out")
    internlm2 = tiny.config.backbone == "llama"
    name = "attention.wqkv" if internlm2 else "self_attn.k_proj"
    name = f"language_model.model.layers.1.{name}.weight"
    row = len(tensors[name]) - 3
    tensors[name][row, 7] += 1
    raw = json.loads((tmp_path / "source/config.json").read_text())
    write_folder(tmp_path / "source", raw, tensors)
    result = verify_folder(tmp_path / "out", tmp_path / "source", logits=False)
    assert len(result["mismatches"]) == 1
    assert name in result["mismatches"][0]
    assert f"[{row}, 7]" in result["mismatches"][0]


def test_any_slice_of_a_parameter_is_read(tiny, tmp_path):
    """As a sharded load does, also across the groups of a wqkv."""
    published(tiny, tmp_path)
    rng = np.random.default_rng(0)
    for path, target in plan_folder(tmp_path).targets.items():
        whole = target.read((slice(None),) * len(target.shape))
        for _ in range(4):
            ends = [sorted(rng.choice(n + 1, 2, replace=False)) for n in target.shape]
            index = tuple(slice(int(a), int(b)) for a, b in ends)
            np.testing.assert_array_equal(target.read(index), whole[index], err_msg=path)
