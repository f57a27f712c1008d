"""What every port is tested for on files: full-size key tables, configs, layouts, round trips."""

import copy
import json
import math
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.key_manifest import fake_headers, read_key_manifest

from model_ports import catalogue
from model_ports.convert.export import export_folder
from model_ports.convert.load import load_model
from model_ports.convert.pieces import flatten
from model_ports.convert.plan import build_plan, plan_folder
from model_ports.convert.save import save
from model_ports.convert.verify import describe, verify_folder
from model_ports.errors import UserError
from model_ports.port import Port, abstract_model, parameter_count
from vrh_jax.answers.formats import box_format
from vrh_jax.data.prompts import prompt_table


def check_full_size(
    port: Port, name: str, tensors: int, layout: str, parameters: int, seed: int
) -> None:
    """The table of a published checkpoint fits both ways; whatever does not is named.

    Args:
        seed: picks the layer at which a tensor of each kind is spoilt.
    """
    keys, raw = read_key_manifest(name), catalogue.published_config(name)
    assert len(keys) == tensors
    plan = build_plan(fake_headers(keys), raw, port, None)
    assert plan.layout == layout
    _, abstract = abstract_model(port, plan.config, jnp.bfloat16)
    assert parameter_count(abstract) == parameters
    # Every value of every tensor is used once, and fills every value of every parameter once.
    used: Counter[str] = Counter()
    for path, leaf in flatten(abstract).items():
        pieces = plan.targets[path].pieces
        used.update({piece.info.name: math.prod(piece.shape) for piece in pieces})
        assert sum(math.prod(piece.shape) for piece in pieces) == math.prod(leaf.shape), path
    unread = {*plan.skipped, *plan.copies}
    assert used == {key: math.prod(size) for key, size in keys.items() if key not in unread}
    kinds: dict[str, list[str]] = {}
    for key in used:
        kinds.setdefault(re.sub(r"\d+", "#", key), []).append(key)
    rng = np.random.default_rng(seed)
    spoilt = {names[rng.integers(len(names))] for names in kinds.values()}
    head = {key for key in spoilt if "lm_head" in key or key == "output.weight"}
    less = {key: size for key, size in keys.items() if key not in spoilt - head}
    _refused(port, raw, less, spoilt - head, "missing")
    _refused(port, raw, keys | dict.fromkeys(spoilt, (3, 5, 7)), spoilt, "wrong shape")
    extra = {"another.weight", f"{rng.choice(sorted(used))}_scale"}
    _refused(port, raw, keys | dict.fromkeys(extra, (3,)), extra, "unknown")


def _refused(port: Port, raw: Any, keys: dict[str, Any], named: set[str], why: str) -> None:
    with pytest.raises(UserError, match=why) as caught:
        build_plan(fake_headers(keys), raw, port, None)
    assert not [name for name in named if name not in str(caught.value)]


def check_config(port: Port, name: str) -> None:
    """The published config is read; an attribute that is not understood is named, at any depth."""
    raw = catalogue.published_config(name)
    port.read_config(copy.deepcopy(raw))
    parts = [()] + [(key,) for key, part in raw.items() if key.endswith("config") and part]
    assert len(parts) > 1 or "mm_vision_tower" in raw
    for part in parts:
        changed = copy.deepcopy(raw)
        (changed[part[0]] if part else changed)["something_new"] = 1
        with pytest.raises(UserError, match="something_new"):
            port.read_config(changed)


def check_files(pair: Any, port: Port, folder: Path, *, compared: bool) -> None:
    """Converted, verified, exported bit for bit; every layout loads to the same parameters.

    Args:
        compared: transformers has a class for the files, so that verify compares logits.
    """
    _same_params(load_model(pair.folder), pair)
    source = load_file(pair.folder / "model.safetensors")
    plan = plan_folder(pair.folder)
    save(plan, folder / "converted")
    result = verify_folder(folder / "converted")
    assert result["ok"], describe(result)
    assert result["against"] == "source"
    assert result["logits"]["compared"] == compared
    if compared:
        assert {type(result["logits"][part]) for part in ("text", "image")} == {float}
    report = export_folder(folder / "converted", folder / "back", max_shard=100_000)
    assert report["layout"] == plan.layout
    assert report["files"][0] != "model.safetensors"  # several
    back: dict[str, np.ndarray] = {}
    for path in (folder / "back").glob("*.safetensors"):
        back |= load_file(path)
    assert set(source) - set(back) == set(report["not_written"]) == set(plan.skipped)
    for name, value in back.items():
        assert (value.dtype, value.shape) == (source[name].dtype, source[name].shape)
        assert value.tobytes() == source[name].tobytes(), name
    for layout in port.layouts(pair.config):
        export_folder(folder / "converted", folder / layout, layout=layout)
        assert plan_folder(folder / layout).layout == layout
        _same_params(load_model(folder / layout), pair)
    _same_params(load_model(folder / "converted"), pair)


def _same_params(model: Any, pair: Any) -> None:
    assert model.config == pair.config
    ours, theirs = flatten(model.params), flatten(pair.params)
    assert set(ours) == set(theirs)
    for path, leaf in ours.items():
        assert np.asarray(leaf).tobytes() == np.asarray(theirs[path]).tobytes(), path


def check_duplicate(pair: Any, folder: Path) -> None:
    """A tensor that two files hold is named."""
    shutil.copytree(pair.folder, folder / "twice")
    source = load_file(pair.folder / "model.safetensors")
    name = max(set(source) - set(plan_folder(pair.folder).skipped))
    save_file({name: source[name]}, folder / "twice/model-2.safetensors")
    with pytest.raises(UserError, match=re.escape(name)):
        load_model(folder / "twice")


def check_rows_elsewhere(port: Port, name: str) -> None:
    """The other tables know the model: hub ids, backbone, vision side, prompts, boxes."""
    assert name in catalogue.BACKBONES
    assert port.family in catalogue.VISION
    assert name in prompt_table().models[port.family].names
    assert port.box is not None
    assert port.names[name]
    for known in (name, port.family, *port.names[name]):
        assert box_format(known) == port.box
    stated = json.dumps(port.box.template)
    assert all(f"{{{corner}" in stated for corner in ("x0", "y0", "x1", "y1"))
