"""Loads checkpoints on several devices (and processes) and prints what was found, as JSON.

Arguments: mode, folder of the source, folder of the conversion, then for ``processes``: the
coordinator's port, the number of processes and this one's index.
"""

import dataclasses
import gc
import json
import sys
from pathlib import Path

import jax
import numpy as np

from model_ports.backbones.llama import PORT
from model_ports.convert import load, safetensors_file
from model_ports.convert.load import load_model
from model_ports.convert.pieces import flatten
from model_ports.convert.plan import plan_folder
from model_ports.sharding import make_mesh, param_spec

# Reading a tokenizer imports transformers, which takes seconds.
WITHOUT_TOKENIZER = dataclasses.replace(PORT, processor=lambda folder, config: None)


def whole_values(source):
    plan = plan_folder(source)
    return {p: t.read((slice(None),) * len(t.shape)) for p, t in plan.targets.items()}


def check(params, expected, mesh):
    """Values, shardings and sizes of what each device holds; returns the largest shares."""
    flat = flatten(params)
    assert set(flat) == set(expected)
    held = {}
    for path, array in flat.items():
        want = expected[path]
        assert array.shape == want.shape, path
        assert array.dtype == want.dtype, path
        if mesh is not None:
            spec = param_spec(path, array.shape, mesh)
            assert array.sharding.is_equivalent_to(
                jax.sharding.NamedSharding(mesh, spec), array.ndim
            ), path
        for shard in array.addressable_shards:
            assert shard.data.shape == array.sharding.shard_shape(array.shape), path
            assert np.asarray(shard.data).tobytes() == want[shard.index].tobytes(), path
            held[str(shard.device)] = held.get(str(shard.device), 0) + shard.data.nbytes
    return held


def sizes(params):
    gc.collect()
    live = sum(a.nbytes if a.is_fully_addressable else 0 for a in jax.live_arrays())
    return live, sum(leaf.nbytes for leaf in jax.tree.leaves(params))


def meshes(source, converted, shapes):
    """Both kinds of folder on meshes of all devices, and on the first one alone."""
    expected = whole_values(source)
    out = {}
    for data, tensor in shapes:
        devices = jax.devices()[: data * tensor]
        mesh = make_mesh(data, tensor, devices) if data * tensor > 1 else None
        for kind, folder in (("files", source), ("converted", converted)):
            model = load_model(folder, mesh=mesh, port=WITHOUT_TOKENIZER)
            live, own = sizes(model.params)  # first: looking at shards makes arrays of them
            held = check(model.params, expected, mesh)
            out[f"{kind} {data}x{tensor}"] = {
                "held": max(held.values()),
                "devices": len(held),
                "live": live,
                "own": own,
                "fingerprint": model.fingerprint,
            }
            del model
    return out


def count_reads():
    """Bytes read from safetensors files by this process from here on.

    The fingerprint is left out: it reads all of a small checkpoint, and samples of a large one.
    """
    load.weights_digest = lambda headers: ""
    counter = {"bytes": 0}
    real = safetensors_file.TensorInfo.read

    def read(self, *args, **kwargs):
        values = real(self, *args, **kwargs)
        counter["bytes"] += values.nbytes
        return values

    safetensors_file.TensorInfo.read = read
    return counter


def processes(source, converted, port, count, index):
    jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
    expected = whole_values(source)
    mesh = make_mesh(1, len(jax.devices()), jax.devices())
    counter = count_reads()
    model = load_model(source, mesh=mesh, port=WITHOUT_TOKENIZER)
    read = counter["bytes"]
    held = check(model.params, expected, mesh)
    other = load_model(converted, mesh=mesh, port=WITHOUT_TOKENIZER)
    again = check(other.params, expected, mesh)
    assert held == again
    return {"read": read, "held": held, "total": sum(v.nbytes for v in expected.values())}


def main():
    mode, source, converted, *rest = sys.argv[1:]
    if mode == "processes":
        result = processes(Path(source), Path(converted), *map(int, rest))
    else:
        shapes = [tuple(map(int, shape.split("x"))) for shape in rest]
        result = meshes(Path(source), Path(converted), shapes)
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main()
