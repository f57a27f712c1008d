"""Loading into shardings: values, memory per device, processes, fingerprints, bad folders."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from support.checkpoints import llama_config, llama_shapes, tiny_llama, write_folder

from model_ports.convert.export import export_folder
from model_ports.convert.load import load_model
from model_ports.convert.pieces import flatten
from model_ports.convert.plan import plan_folder
from model_ports.convert.save import save
from model_ports.convert.verify import verify_folder
from model_ports.errors import UserError

ROOT = Path(__file__).parents[3]
WORKER = ROOT / "tests/support/load_worker.py"


def start(*arguments, devices=8):
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    command = [sys.executable, str(WORKER), *map(str, arguments)]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def result(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-3000:]
    (line,) = [line for line in out.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A source and its conversion, cut into chunks by layer and for eight shards."""
    base = tmp_path_factory.mktemp("load")
    sizes = dict(hidden_size=64, num_attention_heads=8, num_key_value_heads=4, vocab_size=160)
    tiny_llama(base / "source", shards=2, intermediate_size=96, **sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("model_ports.convert.store._SMALL", 0)
        patch.setattr("model_ports.convert.store._MIN_CHUNK", 0)
        save(plan_folder(base / "source"), base / "converted", shards=8)
    return base / "source", base / "converted"


@pytest.mark.multidevice
def test_saved_for_eight_devices_loads_on_eight_four_two_and_one(folders):
    """No device ever holds more than its shard, and nothing but the parameters stays alive."""
    found = result(start("meshes", *folders, "1x8", "2x2", "1x4", "1x1"))
    assert len({run["fingerprint"] for run in found.values()}) == 1
    total = found["files 1x1"]["held"]
    for name, run in found.items():
        data, tensor = map(int, name.split()[1].split("x"))
        assert run["devices"] == data * tensor
        assert run["live"] == run["own"], f"{name}: arrays beside the parameters are alive"
        if tensor > 1:
            assert run["held"] < total * (1 / tensor + 0.2)
    assert found["files 1x8"] == {**found["converted 1x8"]}


@pytest.mark.multidevice
def test_two_processes_each_read_their_own_part(folders):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    both = [start("processes", *folders, port, 2, index, devices=2) for index in range(2)]
    found = [result(process) for process in both]
    assert set(found[0]["held"]).isdisjoint(found[1]["held"])
    for run in found:
        assert len(run["held"]) == 2
        # Half of what is cut over the four devices, and what every device has.
        assert run["read"] <= sum(run["held"].values())
        assert run["read"] < 0.6 * run["total"]


def test_one_device_and_metadata(folders):
    source, _ = folders
    plan = plan_folder(source)
    for folder in folders:
        model = load_model(folder)
        assert model.name == folder.name
        assert model.port.family == "llama"
        assert model.decoder.heads == 8
        assert model.processor.decode([5, 1]) == "w5"
        for path, leaf in flatten(model.params).items():
            target = plan.targets[path]
            assert isinstance(leaf, jax.Array)
            assert leaf.dtype == target.dtype
            whole = target.read((slice(None),) * len(target.shape))
            assert np.array_equal(np.asarray(leaf), whole)
    assert load_model(source, name="mine").name == "mine"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_cast_on_loading_is_the_same_from_both(folders, dtype):
    a, b = (load_model(folder, dtype=dtype) for folder in folders)
    for path, leaf in flatten(a.params).items():
        other = flatten(b.params)[path]
        assert leaf.dtype == other.dtype == dtype
        assert np.array_equal(np.asarray(leaf), np.asarray(other)), path
    assert a.fingerprint == b.fingerprint


def test_fingerprint_follows_weights_config_and_tokenizer(tmp_path):
    def value(**changes):
        shutil.rmtree(tmp_path, ignore_errors=True)
        tiny_llama(tmp_path, **changes)
        return load_model(tmp_path)

    base = value()
    assert value().fingerprint == base.fingerprint
    assert value(shards=3).fingerprint == base.fingerprint
    assert value(seed=1).fingerprint != base.fingerprint
    assert value(rope_theta=2e4).fingerprint != base.fingerprint
    value()
    assert load_model(tmp_path, dtype="float32").fingerprint != base.fingerprint
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["chat_template"] = "{{ messages[0].content }}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load_model(tmp_path).fingerprint != base.fingerprint


def refused(folder, *words, **kwargs):
    with pytest.raises(UserError) as caught:
        load_model(folder, **kwargs)
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in {caught.value}"


def test_bad_sources(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    refused("nobody/no-such-model-here", "no such local folder", "HF_HUB_OFFLINE")
    refused("no such model", "no such folder", "smollm2-135m")
    refused("gs://bucket/model", "gs://bucket/model", "gcsfuse")
    refused(tmp_path, "no *.safetensors")
    tiny_llama(tmp_path / "m")
    refused(tmp_path / "m", "float8", dtype="float8")
    (tmp_path / "m.partial").mkdir()
    refused(tmp_path / "m.partial", "unfinished")


def test_hub_ids_are_downloaded_without_unsafe_files(tmp_path, monkeypatch):
    tiny_llama(tmp_path / "cache/0123abcd")
    asked = {}

    def download(repo, *, revision, allow_patterns):
        asked.update(repo=repo, revision=revision, patterns=allow_patterns)
        return str(tmp_path / "cache/0123abcd")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    model = load_model("someone/tiny-llama")
    assert model.name == "tiny-llama"
    assert asked["repo"] == "someone/tiny-llama"
    assert not [p for p in asked["patterns"] if p.endswith((".bin", ".py", "*", ".pt"))]
    assert load_model("smollm2-135m").name == "smollm2-135m"
    assert asked["repo"] == "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_model_and_tokenizer_that_do_not_match(tmp_path):
    tiny_llama(tmp_path / "a")
    config = llama_config(vocab_size=900)
    write_folder(tmp_path / "b", config, {"x": np.zeros(1)})
    shutil.copy(tmp_path / "b/tokenizer.json", tmp_path / "a/tokenizer.json")
    refused(tmp_path / "a", "900", "61")


def test_damaged_conversions(folders, tmp_path):
    _, converted = folders
    folder = tmp_path / "c"
    shutil.copytree(converted, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"format": 99}))
    refused(folder, "format 99")
    (folder / "manifest.json").write_text("{")
    refused(folder, "manifest.json")
    shutil.copy(converted / "manifest.json", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    refused(folder, "convert the source again", "decoder/layers")
    shutil.copy(converted / "config.json", folder)
    shutil.rmtree(folder / "params/decoder.final_norm.scale")
    refused(folder, "decoder.final_norm.scale")


def test_every_shape_of_the_tiny_config_is_used(folders):
    shapes = llama_shapes(json.loads((folders[0] / "config.json").read_text()))
    assert set(plan_folder(folders[0]).headers.tensors) == set(shapes)


@pytest.mark.parametrize("left", [None, 5])
def test_a_folder_that_lacks_a_chunk_is_refused_by_name(folders, tmp_path, left):
    """Of an incomplete copy; zarr would read zeros."""
    converted = shutil.copytree(folders[1], tmp_path / "converted")
    chunk = "params/decoder.layers.mlp.up.kernel/1.0.3"
    data = (converted / chunk).read_bytes()
    (converted / chunk).unlink()
    if left:
        (converted / chunk).write_bytes(data[:left])
    found = rf"{chunk} is {f'{left} of {len(data)} bytes' if left else 'missing'}"
    for use in (load_model, lambda folder: export_folder(folder, tmp_path / "out")):
        with pytest.raises(UserError, match=found):
            use(converted)
    result = verify_folder(converted, folders[0], logits=False)
    assert not result["ok"]
    assert any(chunk in sentence for sentence in result["mismatches"])
