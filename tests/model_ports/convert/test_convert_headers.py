"""Headers and reads of safetensors folders, against the safetensors library."""

import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch
from support.checkpoints import BF16, tiny_llama

from model_ports.convert.headers import DTYPES, read_headers
from model_ports.errors import UserError

NUMPY = [np.dtype(d) for d in (DTYPES[c] for c in DTYPES)]


def refused(folder, *words):
    with pytest.raises(UserError) as caught:
        read_headers(folder)
    message = str(caught.value)
    for word in words:
        assert word in message, f"{word!r} is not in {message!r}"
    return message


def raw_file(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    path.write_bytes(size.to_bytes(8, "little") + text + data)


def entry(shape, start, stop, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


@pytest.mark.parametrize("dtype", NUMPY, ids=str)
def test_every_dtype_reads_as_the_library_wrote_it(tmp_path, dtype):
    rng = np.random.default_rng(1)
    values = rng.integers(0, 2, (5, 3, 2)).astype(dtype)
    if dtype.kind in "fV":
        values = rng.normal(size=(5, 3, 2)).astype(np.float32).astype(dtype)
    kinds = {np.dtype(np.bool_): torch.bool}
    bits = torch.from_numpy(values.view(f"u{dtype.itemsize}").copy())
    names = {
        "bfloat16": torch.bfloat16, "float8_e4m3fn": torch.float8_e4m3fn,
        "float8_e5m2": torch.float8_e5m2,
    }  # fmt: skip
    kind = kinds.get(dtype) or names.get(dtype.name) or getattr(torch, dtype.name)
    save_torch({"x": bits.view(kind)}, tmp_path / "model.safetensors")
    info = read_headers(tmp_path).tensors["x"]
    assert info.dtype == dtype
    assert info.shape == values.shape
    assert info.read().tobytes() == values.tobytes()


def test_bfloat16_agrees_with_the_library_in_both_directions(tmp_path):
    """safetensors' own numpy path with ml_dtypes, torch's reading, and ours."""
    values = np.random.default_rng(0).normal(size=(7, 9)).astype(BF16)
    save_file({"x": values}, tmp_path / "model.safetensors")
    ours = read_headers(tmp_path).tensors["x"].read()
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        theirs = file.get_tensor("x")
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        torchs = file.get_tensor("x")
    assert ours.dtype == theirs.dtype == BF16
    assert ours.tobytes() == theirs.tobytes() == values.tobytes()
    assert np.array_equal(torchs.float().numpy(), values.astype(np.float32))


@given(
    rows=st.integers(1, 9), tail=st.lists(st.integers(1, 5), max_size=2), data=st.data(),
    dtype=st.sampled_from([BF16, np.dtype(np.float32), np.dtype(np.int8)]),
)  # fmt: skip
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_partial_reads_equal_slices(tmp_path, rows, tail, data, dtype):
    width = int(np.prod(tail))
    values = np.arange(rows * width).reshape(rows, *tail).astype(dtype)
    # An odd neighbour moves the tensor off any alignment.
    save_file({"a": np.zeros(3, np.int8), "x": values}, tmp_path / "model.safetensors")
    info = read_headers(tmp_path).tensors["x"]
    r0 = data.draw(st.integers(0, rows - 1))
    r1 = data.draw(st.integers(r0 + 1, rows))
    c0 = data.draw(st.integers(0, width - 1))
    c1 = data.draw(st.integers(c0 + 1, width))
    assert np.array_equal(info.read(slice(r0, r1)), values[r0:r1])
    part = info.read(slice(r0, r1), slice(c0, c1))
    assert np.array_equal(part, values.reshape(rows, width)[r0:r1, c0:c1])


def test_mixed_dtypes_in_one_file(tmp_path):
    tensors = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.arange(5).astype(BF16),
        "c": np.arange(4, dtype=np.int64),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    found = read_headers(tmp_path).tensors
    for name, value in tensors.items():
        assert found[name].dtype == value.dtype
        assert np.array_equal(found[name].read(), value)


def test_index_and_files_of_a_good_folder(tmp_path):
    tensors = tiny_llama(tmp_path, shards=3)
    headers = read_headers(tmp_path)
    assert set(headers.tensors) == set(tensors)
    assert len(headers.files) == 3
    assert headers.nbytes == sum(t.nbytes for t in tensors.values())
    assert headers.largest == max(t.nbytes for t in tensors.values())


def test_missing_shard(tmp_path):
    tiny_llama(tmp_path, shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    refused(tmp_path, "model-00002-of-00003.safetensors", "missing", "Download")


def test_missing_shard_without_an_index(tmp_path):
    tiny_llama(tmp_path, shards=3)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert len(read_headers(tmp_path).files) == 3
    (tmp_path / "model-00003-of-00003.safetensors").unlink()
    refused(tmp_path, "model-00003-of-00003.safetensors", "missing")


@pytest.mark.parametrize("keep", [0, 5, 8, 40, 0.3, 0.9, 0.999])
def test_truncated_file(tmp_path, keep):
    tiny_llama(tmp_path, shards=2)
    path = tmp_path / "model-00001-of-00002.safetensors"
    data = path.read_bytes()
    count = int(keep * len(data)) if isinstance(keep, float) else keep
    path.write_bytes(data[:count])
    refused(tmp_path, path.name, "truncated")


def test_truncated_file_names_the_tensor(tmp_path):
    raw_file(tmp_path / "model.safetensors", {"deep": entry([4], 0, 16)}, b"0" * 15)
    refused(tmp_path, "deep", "truncated")


def test_tensor_in_two_files(tmp_path):
    tiny_llama(tmp_path, shards=2)
    one = tmp_path / "model-00001-of-00002.safetensors"
    (tmp_path / "model.safetensors.index.json").unlink()
    shutil.copy(one, tmp_path / "copy.safetensors")
    refused(tmp_path, "two files", "copy.safetensors", one.name)


def test_tensor_twice_in_one_header(tmp_path):
    text = b'{"a": %s, "a": %s}' % ((json.dumps(entry([1], 0, 4)).encode(),) * 2)
    raw_file(tmp_path / "model.safetensors", text, b"0" * 4)
    refused(tmp_path, "'a'", "twice")


def test_overlap_hole_and_excess(tmp_path):
    path = tmp_path / "model.safetensors"
    raw_file(path, {"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, b"0" * 12)
    refused(tmp_path, "'b'", "overlaps", "'a'")
    raw_file(path, {"a": entry([2], 0, 8), "b": entry([2], 12, 20)}, b"0" * 20)
    refused(tmp_path, "'b'", "hole")
    raw_file(path, {"a": entry([2], 0, 8)}, b"0" * 9)
    refused(tmp_path, "1 bytes after")


@pytest.mark.parametrize(
    "bad",
    [
        entry([2], 0, 4), entry([2], 8, 0), entry([-2], 0, 8), entry([2.0], 0, 8),
        entry(["2"], 0, 8),
        {"dtype": "F32", "shape": [2]}, entry([2], 0, 8, "F4"), "text", entry(None, 0, 8),
    ],
    ids=str,
)  # fmt: skip
def test_damaged_entry_is_named(tmp_path, bad):
    raw_file(tmp_path / "model.safetensors", {"bad.one": bad}, b"0" * 8)
    refused(tmp_path, "bad.one", "model.safetensors")


def test_damaged_header(tmp_path):
    path = tmp_path / "model.safetensors"
    raw_file(path, b"{not json}")
    refused(tmp_path, path.name, "damaged header")
    raw_file(path, b"[]")
    refused(tmp_path, path.name, "damaged header")
    raw_file(path, b"\xff\xfe{}")
    refused(tmp_path, path.name, "damaged header")
    raw_file(path, {}, length=2**40)
    refused(tmp_path, path.name, "truncated")


@pytest.mark.parametrize("length", [0x0280, 0x0480, 0x4B50, 0x3C20, 0x013C, 0x0A3C])
def test_header_lengths_that_look_like_other_formats(tmp_path, length):
    """0x0280 starts like a pickle, 0x4B50 like a zip, 0x3C like a web page."""
    text = json.dumps({"a": entry([1], 0, 4)}).encode()
    raw_file(tmp_path / "model.safetensors", text + b" " * (length - len(text)), b"0" * 4)
    assert read_headers(tmp_path).tensors["a"].shape == (1,)


def test_things_that_are_no_safetensors(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    refused(tmp_path, "Git LFS")
    path.write_text("<!doctype html><html></html>")
    refused(tmp_path, "web page")
    torch.save({"a": torch.zeros(2)}, path)
    refused(tmp_path, "pickle", "save_pretrained")


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "weights.pkl"]
)
def test_pickles_are_refused_with_a_way_out(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x04.")
    refused(tmp_path, name, "safetensors", "save_pretrained", "unpickling")


def test_other_formats_and_empty_folders(tmp_path):
    refused(tmp_path, "no *.safetensors")
    (tmp_path / "model.gguf").touch()
    refused(tmp_path, "model.gguf")
    refused(tmp_path / "nowhere", "not a folder")


def test_a_bin_beside_safetensors_is_ignored(tmp_path):
    tensors = tiny_llama(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    assert set(read_headers(tmp_path).tensors) == set(tensors)


def test_index_that_does_not_match(tmp_path):
    tiny_llama(tmp_path, shards=2)
    path = tmp_path / "model.safetensors.index.json"
    good = json.loads(path.read_text())

    def write(change):
        index = json.loads(json.dumps(good))
        change(index["weight_map"])
        path.write_text(json.dumps(index))

    other = "model-00002-of-00002.safetensors"
    write(lambda m: m.update({"model.norm.weight": other, "lm_head.weight": other}))
    refused(tmp_path, "is in", "different versions")
    write(lambda m: m.update({"ghost.weight": other}))
    refused(tmp_path, "ghost.weight", other)
    write(lambda m: m.pop("model.norm.weight"))
    refused(tmp_path, "model.norm.weight", "not in the index")
    write(lambda m: m.update({"x": "../outside.safetensors"}))
    refused(tmp_path, "../outside.safetensors")
    write(lambda m: m.update({"x": "part.bin"}))
    (tmp_path / "part.bin").touch()
    refused(tmp_path, "part.bin", "no safetensors")
    path.write_text("{}")
    refused(tmp_path, path.name, "weight_map")
    path.write_text(json.dumps(good))
    save_file({"a": np.zeros(1)}, tmp_path / "model.safetensors")
    refused(tmp_path, "both model.safetensors")


def test_files_outside_the_index_are_not_read(tmp_path):
    tensors = tiny_llama(tmp_path, shards=2)
    save_file({"a": np.zeros(1)}, tmp_path / "consolidated.safetensors")
    assert set(read_headers(tmp_path).tensors) == set(tensors)


def test_adapters_are_named(tmp_path):
    save_file({"a": np.zeros(1)}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text("{}")
    refused(tmp_path, "adapter", "merge")
