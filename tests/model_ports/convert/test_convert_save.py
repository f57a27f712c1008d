"""Streaming conversion: what plain Orbax reads, resuming, atomicity, refusals."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import orbax.checkpoint as ocp
import orbax.checkpoint.experimental.v1 as experimental
import pytest
from support.checkpoints import (
    BF16,
    folder_bytes,
    llama_config,
    llama_shapes,
    random_tensors,
    tiny_llama,
    write_big,
    write_folder,
)

from model_ports.convert import save as saving
from model_ports.convert import write as writing
from model_ports.convert.load import load_model
from model_ports.convert.pieces import flatten, unflatten
from model_ports.convert.plan import plan_folder
from model_ports.convert.save import save
from model_ports.convert.source import is_converted
from model_ports.convert.store import chunk_shape, chunk_slices
from model_ports.errors import UserError

ROOT = Path(__file__).parents[3]


def convert(source, out, *, dtype=None, **kwargs):
    return save(plan_folder(source, dtype=dtype), out, **kwargs)


def refused(source, out, *words, **kwargs):
    with pytest.raises(UserError) as caught:
        convert(source, out, **kwargs)
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in {caught.value}"


def values_of(plan):
    return {p: t.read((slice(None),) * len(t.shape)) for p, t in plan.targets.items()}


def orbax_values(folder):
    tree = ocp.StandardCheckpointer().restore((folder / "params").absolute())
    return {path: np.asarray(leaf) for path, leaf in flatten(tree).items()}


def assert_same(actual, expected):
    assert set(actual) == set(expected)
    for path, value in expected.items():
        assert actual[path].dtype == value.dtype, path
        assert actual[path].shape == value.shape, path
        assert actual[path].tobytes() == value.tobytes(), path


@pytest.fixture
def source(tmp_path):
    tiny_llama(tmp_path / "source", shards=3)
    return tmp_path / "source"


@pytest.mark.parametrize("dtype", [None, "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("small", [True, False], ids=["one chunk", "chunks"])
def test_plain_orbax_restores_every_bit(tmp_path, monkeypatch, dtype, small):
    """Also with parameters cut by layer and shard, which only large ones are by default."""
    if not small:
        monkeypatch.setattr("model_ports.convert.store._SMALL", 0)
        monkeypatch.setattr("model_ports.convert.store._MIN_CHUNK", 0)
        monkeypatch.setattr("model_ports.convert.store._MAX_CHUNK", 500)
    tiny_llama(tmp_path / "source", dtype=np.float32)
    plan = plan_folder(tmp_path / "source", dtype=dtype)
    save(plan, tmp_path / "out", shards=2)
    expected = values_of(plan)
    assert_same(orbax_values(tmp_path / "out"), expected)
    # With a target tree, and through the general handler.
    abstract = {p: jax.ShapeDtypeStruct(v.shape, v.dtype) for p, v in expected.items()}
    path = (tmp_path / "out" / "params").absolute()
    tree = ocp.StandardCheckpointer().restore(path, unflatten(abstract))
    assert_same({p: np.asarray(v) for p, v in flatten(tree).items()}, expected)
    tree = ocp.PyTreeCheckpointer().restore(path)
    assert_same({p: np.asarray(v) for p, v in flatten(tree).items()}, expected)
    tree = experimental.load(path)
    assert_same({p: np.asarray(v) for p, v in flatten(tree).items()}, expected)


def test_casts_round_to_nearest_even(tmp_path):
    tensors = tiny_llama(tmp_path / "source", dtype=np.float32)
    convert(tmp_path / "source", tmp_path / "out", dtype="bfloat16")
    import torch

    name = "model.embed_tokens.weight"
    expected = torch.from_numpy(tensors[name]).to(torch.bfloat16).float().numpy()
    ours = orbax_values(tmp_path / "out")["decoder/embed/embedding"]
    assert np.array_equal(ours.astype(np.float32), expected)


def test_a_cast_may_not_overflow(tmp_path):
    config = llama_config()
    tensors = random_tensors(llama_shapes(config), 0, np.float32)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 3] = 1e5
    write_folder(tmp_path / "source", config, tensors)
    refused(
        tmp_path / "source", tmp_path / "out", "model.layers.1.mlp.up_proj.weight", "float16",
        dtype="float16",
    )  # fmt: skip
    assert {p.name for p in tmp_path.iterdir()} == {"source"}
    with pytest.raises(UserError, match=r"up_proj.*float16"):
        load_model(tmp_path / "source", dtype="float16")
    convert(tmp_path / "source", tmp_path / "out")
    with pytest.raises(UserError, match=r"up/kernel.*float16"):
        load_model(tmp_path / "out", dtype="float16")


def test_manifest_says_what_came_from_where(tmp_path, source):
    (source / "model.safetensors.index.json").read_text()
    convert(source, tmp_path / "out", dtype="float32")
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    for file in manifest["files"]:
        data = (source / file["name"]).read_bytes()
        assert file["size"] == len(data)
        assert file["sha256"] == hashlib.sha256(data).hexdigest()
    assert len(manifest["files"]) == 3
    headers = plan_folder(source).headers
    assert set(manifest["tensors"]) == set(headers.tensors)
    for name, record in manifest["tensors"].items():
        values = headers.tensors[name].read()
        assert record["sha256"] == hashlib.sha256(values.tobytes()).hexdigest()
        assert record["dtype"] == "BF16"
        assert tuple(record["shape"]) == values.shape
        assert record["file"] == headers.tensors[name].path.name
        (into,) = record["into"]
        assert into["param"].startswith("decoder/")
        stored = values.astype(np.float32)
        assert into["stored_sha256"] == hashlib.sha256(stored.tobytes()).hexdigest()
    assert manifest["layout"] == "llama"
    assert manifest["dtype"] == "float32"
    assert manifest["versions"]["jax"] == jax.__version__
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        data = (source / name).read_bytes()
        assert (tmp_path / "out" / name).read_bytes() == data
        assert manifest["copied"][name] == hashlib.sha256(data).hexdigest()


def test_result_has_nothing_but_the_checkpoint(tmp_path, source):
    convert(source, tmp_path / "out")
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert names == {
        "config.json", "manifest.json", "params", "tokenizer.json", "tokenizer_config.json"
    }  # fmt: skip
    assert {p.name for p in tmp_path.iterdir()} == {"source", "out"}


class Stop(BaseException):
    """Stands for a kill: nothing in the code catches it."""


def stop_at(monkeypatch, name, call):
    """Make the ``call``-th call of a function of the saving modules stop, before it acts."""
    module = saving if hasattr(saving, name) else writing
    real, seen = getattr(module, name), [0]

    def wrapper(*args, **kwargs):
        seen[0] += 1
        if seen[0] == call:
            raise Stop
        return real(*args, **kwargs)

    monkeypatch.setattr(module, name, wrapper)


def assert_unfinished(out):
    """No folder looks complete, and neither we nor plain Orbax open what is there."""
    assert not out.exists()
    partial = out.with_name(out.name + ".partial")
    with pytest.raises(UserError):
        load_model(partial)
    # Orbax's own metadata is there only once every parameter is.
    if partial.exists() and not (partial / "params/_METADATA").exists():
        with pytest.raises(Exception):  # noqa: B017
            ocp.StandardCheckpointer().restore((partial / "params").absolute())


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("checksums", 1), ("_write_progress", 1), ("_write_progress", 2), ("_write_progress", 7),
        ("_write", 1), ("_write", 5), ("_write", 12), ("write_target", 3),
        ("write_orbax_metadata", 1), ("write_manifest", 1), ("_publish", 1),
    ],
)  # fmt: skip
def test_stopped_anywhere_it_continues_and_gives_the_same(
    tmp_path, source, monkeypatch, name, call
):
    convert(source, tmp_path / "whole")
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        stop_at(patch, name, call)
        with pytest.raises(Stop):
            convert(source, out)
    assert_unfinished(out)
    progress = tmp_path / "out.partial" / "progress.json"
    done = json.loads(progress.read_text())["done"] if progress.exists() else {}
    if (tmp_path / "out.partial/params/_METADATA").exists():
        assert set(done) == set(plan_folder(source).targets)
    written = []
    real = saving.write_target
    with monkeypatch.context() as patch:
        patch.setattr(saving, "write_target", lambda *a: (written.append(a[1].path), real(*a))[1])
        report = convert(source, out)
    assert report.resumed == len(done)
    assert not set(written) & set(done), "a finished parameter was written again"
    assert len(written) + len(done) == report.parameters
    assert not (tmp_path / "out.partial").exists()
    a, b = folder_bytes(tmp_path / "whole"), folder_bytes(out)
    for stamped in ("manifest.json", "params/_CHECKPOINT_METADATA"):
        assert a.pop(stamped)
        assert b.pop(stamped)
    assert a == b


def test_many_small_stops_in_a_row(tmp_path, source, monkeypatch):
    """Each run is stopped after one more parameter; nothing is done twice."""
    out = tmp_path / "out"
    total = len(plan_folder(source).targets)
    for _ in range(total):
        with monkeypatch.context() as patch:
            stop_at(patch, "write_target", 2)
            try:
                convert(source, out)
            except Stop:
                assert_unfinished(out)
                continue
        break
    assert is_converted(out)
    assert_same(orbax_values(out), values_of(plan_folder(source)))


@pytest.mark.parametrize("kind", ["value", "config", "dtype", "shards", "name"])
def test_two_sources_are_never_mixed(tmp_path, source, monkeypatch, kind):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        stop_at(patch, "write_target", 6)
        with pytest.raises(Stop):
            convert(source, out)
    other, options = tmp_path / "other", {}
    shutil.copytree(source, other)
    if kind == "value":  # one bit of one tensor, sizes and times equal
        path = sorted(other.glob("*.safetensors"))[1]
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        stamp = (source / path.name).stat()
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    elif kind == "config":
        config = json.loads((other / "config.json").read_text())
        (other / "config.json").write_text(json.dumps(config | {"rope_theta": 5e5}))
    elif kind == "dtype":
        options = {"dtype": "float32"}
    elif kind == "shards":
        options = {"shards": 2}
    else:  # the same source under another name is the same source
        assert convert(other, out).resumed == 5
        assert_same(orbax_values(out), values_of(plan_folder(source)))
        return
    refused(other, out, "unfinished", "another source or", **options)
    assert_unfinished(out)
    report = convert(other, out, overwrite=True, **options)
    assert report.resumed == 0
    assert_same(orbax_values(out), values_of(plan_folder(other, dtype=options.get("dtype"))))


def test_an_existing_folder_is_kept_unless_told(tmp_path, source):
    out = tmp_path / "out"
    convert(source, out)
    before = folder_bytes(out)
    tiny_llama(tmp_path / "other", seed=1)
    refused(tmp_path / "other", out, "exists", "--overwrite")
    assert folder_bytes(out) == before
    convert(tmp_path / "other", out, overwrite=True)
    assert_same(orbax_values(out), values_of(plan_folder(tmp_path / "other")))
    assert {p.name for p in tmp_path.iterdir()} == {"source", "other", "out"}


def test_overwrite_stopped_keeps_the_old_one_until_the_end(tmp_path, source, monkeypatch):
    out = tmp_path / "out"
    convert(source, out)
    before = folder_bytes(out)
    tiny_llama(tmp_path / "other", seed=1)
    for name, call in (("write_target", 3), ("write_manifest", 1), ("_publish", 1)):
        with monkeypatch.context() as patch:
            stop_at(patch, name, call)
            with pytest.raises(Stop):
                convert(tmp_path / "other", out, overwrite=True)
        assert folder_bytes(out) == before
    # Between the two renames, and while the old folder is removed.
    with monkeypatch.context() as patch:
        stop_at(patch, "fsync", len(list((tmp_path / "out.partial").iterdir())) + 3)
        with pytest.raises(Stop):
            convert(tmp_path / "other", out, overwrite=True)
    convert(tmp_path / "other", out, overwrite=True)
    assert_same(orbax_values(out), values_of(plan_folder(tmp_path / "other")))
    assert {p.name for p in tmp_path.iterdir()} == {"source", "other", "out"}


def test_other_peoples_folders_are_never_touched(tmp_path, source):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("precious")
    refused(source, mine, "not a converted checkpoint", overwrite=True)
    shutil.move(mine, tmp_path / "new.partial")
    refused(source, tmp_path / "new", "in the way", overwrite=True)
    assert (tmp_path / "new.partial/thesis.txt").read_text() == "precious"
    refused(source, source, "source folder", overwrite=True)
    refused(source, tmp_path, "holds it", overwrite=True)
    refused(source, tmp_path / "x.partial", "name")
    assert len(folder_bytes(source)) == 7


def test_damaged_progress_is_an_error(tmp_path, source):
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial/progress.json").write_text("{")
    refused(source, tmp_path / "out", "progress.json", "damaged")


def test_disk_space_is_checked_first(tmp_path, source, monkeypatch):
    usage = SimpleNamespace(total=10, used=10, free=1000)
    monkeypatch.setattr(saving.shutil, "disk_usage", lambda _: usage)
    refused(source, tmp_path / "out", "GB free", "needs")
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "out.partial").glob("params/*"))


def test_two_processes_at_once_are_refused(tmp_path, source):
    (tmp_path / "out.partial").mkdir()
    with saving._locked(tmp_path / "out.partial"):
        refused(source, tmp_path / "out", "another process")
    convert(source, tmp_path / "out")


@pytest.mark.parametrize("layers", [1, 5])
@pytest.mark.parametrize("shards", [1, 4, 8, 7])
def test_chunks_cover_an_array_once(monkeypatch, layers, shards):
    monkeypatch.setattr("model_ports.convert.store._SMALL", 0)
    monkeypatch.setattr("model_ports.convert.store._MIN_CHUNK", 0)
    monkeypatch.setattr("model_ports.convert.store._MAX_CHUNK", 3000)
    for path, shape, stacked in (
        ("decoder/layers/attn/q/kernel", (layers, 30, 28, 8), True),
        ("decoder/layers/mlp/down/kernel", (layers, 56, 31), True),
        ("decoder/embed/embedding", (1003, 17), False),
        ("decoder/lm_head/kernel", (17, 1008), False),
        ("decoder/layers/pre_mlp_norm/scale", (layers, 17), True),
    ):
        chunk = chunk_shape(path, shape, BF16, stacked=stacked, shards=shards)
        hits = np.zeros(shape, int)
        for index in chunk_slices(shape, chunk):
            hits[index] += 1
            size = hits[index].size
            assert size * 2 <= 3000 or 1 in chunk[-2:] or shards > 1
        assert (hits == 1).all()
        assert chunk[0] == 1 or not stacked
    q = chunk_shape("decoder/layers/attn/q/kernel", (2, 8, 28, 4), BF16, stacked=True, shards=4)
    assert q == (1, 8, 7, 4)


def test_killed_at_random_moments(tmp_path):
    """SIGKILL, again and again; the result equals that of a run that was left alone."""
    config = llama_config(hidden_size=256, intermediate_size=1024, vocab_size=8192,
                          num_hidden_layers=6)  # fmt: skip
    write_big(tmp_path / "source", config, shard_bytes=8 << 20)
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    code = (
        "import sys, time; from model_ports.convert import write; real = write._write\n"
        "def slow(*a): time.sleep(0.1); return real(*a)\n"
        "write._write = slow\n"
        "from model_ports.convert.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "source"), str(out), "--quiet"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    rng = np.random.default_rng(int(time.time()))
    kills = finished = 0
    for _ in range(12):
        process = subprocess.Popen(command, env=env)
        while process.poll() is None and not (partial / "progress.json").exists():
            time.sleep(0.01)
        try:
            status = process.wait(timeout=float(rng.uniform(0, 0.5)))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            status = process.wait()
        if out.exists():
            finished = 1
            assert is_converted(out)
            break
        assert status == -signal.SIGKILL
        kills += 1
        assert_unfinished(out)
    if not finished:
        assert subprocess.run(command, env=env, check=False).returncode == 0
    # About 20 writes of 0.1 s: the first kill, at most 0.5 s after the first, finds work left.
    assert kills > 0, "no run was killed"
    convert(tmp_path / "source", tmp_path / "whole")
    a, b = folder_bytes(tmp_path / "whole"), folder_bytes(out)
    for stamped in ("manifest.json", "params/_CHECKPOINT_METADATA"):
        a.pop(stamped), b.pop(stamped)
    assert a == b
    assert not partial.exists()
