"""Conversion of the vision-language ports: verified with logits, exported, read by transformers."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from support import glm4v, llava, qwen3, qwen25
from support.internvl import make_tiny
from transformers import AutoModelForImageTextToText

from model_ports.convert.export import export_folder
from model_ports.convert.load import load_model
from model_ports.convert.pieces import flatten
from model_ports.convert.plan import plan_folder
from model_ports.convert.save import save
from model_ports.convert.verify import describe, verify_folder

# The layout that export writes first, and another one where there is one.
LAYOUTS = {
    "qwen": ("published", "in_memory"),
    "intern": ("hf_old", "hf_new"),
    "llava": ("saved", "in_memory"),
    "glm": ("published",),
    "qwen3": ("published",),
}
WRITERS = {
    "qwen": qwen25.write_checkpoint,
    "intern": make_tiny,
    "llava": llava.write_checkpoint,
    "glm": glm4v.write_checkpoint,
    "qwen3": qwen3.write_checkpoint,
}


@pytest.fixture(scope="module", params=list(WRITERS))
def converted(request, tmp_path_factory):
    base = tmp_path_factory.mktemp(request.param)
    (base / "source").mkdir()
    WRITERS[request.param](base / "source", seed=3)
    save(plan_folder(base / "source"), base / "out")
    return request.param, base


def test_verified_with_logits_of_text_and_image(converted):
    _, base = converted
    result = verify_folder(base / "out")
    assert result["ok"], describe(result)
    assert result["against"] == "source"
    logits = result["logits"]
    assert logits["compared"]
    for part in ("text", "image"):
        assert isinstance(logits[part], float), logits
        assert logits[part] <= 1e-4
    assert "logits (image)" in describe(result)


def test_a_wrong_permutation_shows_in_the_logits(converted, tmp_path):
    """What bits against a wrong source cannot show: swapped keys and values everywhere."""
    _, base = converted
    shutil.copytree(base / "source", tmp_path / "source")
    tensors = load_file(tmp_path / "source/model.safetensors")
    for name in [n for n in tensors if "self_attn.k_proj" in n]:
        other = name.replace("k_proj", "v_proj")
        tensors[name], tensors[other] = tensors[other], tensors[name]
    save_file(tensors, tmp_path / "source/model.safetensors", metadata={"format": "pt"})
    save(plan_folder(tmp_path / "source"), tmp_path / "out")
    from model_ports.convert.logits import compare_logits

    result = compare_logits(tmp_path / "out", base / "source")
    assert not result["ok"]
    assert result["text"] > 1e-2


def test_export_is_what_transformers_wrote(converted, tmp_path):
    kind, base = converted
    report = export_folder(base / "out", tmp_path / "back", max_shard=100_000)
    assert report["layout"] == LAYOUTS[kind][0]
    source = load_file(base / "source/model.safetensors")
    back = {}
    for path in (tmp_path / "back").glob("*.safetensors"):
        back |= load_file(path)
    assert set(back) == set(source)
    for name, value in source.items():
        assert back[name].dtype == value.dtype
        assert back[name].shape == value.shape
        assert back[name].tobytes() == value.tobytes(), name
    a = AutoModelForImageTextToText.from_pretrained(base / "source", dtype=torch.float32)
    b = AutoModelForImageTextToText.from_pretrained(tmp_path / "back", dtype=torch.float32)
    theirs = b.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in a.state_dict().items())


def test_the_other_layout_gives_the_same_parameters(converted, tmp_path):
    kind, base = converted
    other = LAYOUTS[kind][-1]
    export_folder(base / "out", tmp_path / "other", layout=other)
    assert plan_folder(tmp_path / "other").layout == other
    want = flatten(load_model(base / "source").params)
    for folder in (tmp_path / "other", base / "out"):
        for path, leaf in flatten(load_model(folder).params).items():
            assert np.asarray(leaf).tobytes() == np.asarray(want[path]).tobytes(), path
