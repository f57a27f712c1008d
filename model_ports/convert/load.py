"""Load a checkpoint straight into its sharding.

Every process reads only the bytes that its own devices hold: parameters are made with
``jax.make_array_from_callback`` (Hugging Face folders) or restored by Orbax (converted
folders) into the shardings of ``model_ports.sharding``. A whole parameter is never placed on
one device first, and there is no collective, so all processes of a pod may call this with the
same (shared or copied) folder.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding

from model_ports.configs import read_json
from model_ports.convert.fingerprint import fingerprint, weights_digest
from model_ports.convert.pieces import Index, Target, flatten, unflatten
from model_ports.convert.plan import Plan, parse_dtype, plan_folder, settled_config
from model_ports.convert.source import PARAMS, is_converted, resolve
from model_ports.convert.store import Stored, check_chunks, read_manifest, stored_arrays
from model_ports.errors import UserError
from model_ports.port import Model, Port, abstract_model
from model_ports.registry import port_for
from model_ports.sharding import param_spec
from model_ports.vlm import VLM


def load_model(
    source: str | Path,
    *,
    name: str | None = None,
    dtype: str | None = None,
    mesh: Mesh | None = None,
    port: Port | None = None,
) -> Model:
    """Load a checkpoint.

    Args:
        source: Hugging Face folder, converted folder, or hub id (the only case that uses the
            network).
        name: what the user calls it; defaults to the folder's name.
        dtype: float32, bfloat16 or float16; None keeps the checkpoint's.
        mesh: with the axes of ``model_ports.sharding``; None places all on the first device.
        port: overrides the port found by ``model_type``.

    Raises:
        UserError: anything wrong with the folder, named, before weights are read.
    """
    model, read = _open(source, name, dtype, port)
    return dataclasses.replace(model, params=read(mesh))


def open_model(source: str | Path, *, name: str | None = None, dtype: str | None = None) -> Model:
    """A model without its weights (``params`` is empty), after all checks of ``load_model``.

    Args, Raises: as ``load_model``.
    """
    return _open(source, name, dtype, None)[0]


def _open(
    source: str | Path, name: str | None, dtype: str | None, port: Port | None
) -> tuple[Model, Callable[[Mesh | None], dict[str, Any]]]:
    """(the model without weights, what reads them)."""
    parse_dtype(dtype)
    folder = resolve(source)
    # A downloaded folder is named after a commit; the user knows the id.
    own = folder.resolve().name if Path(source).exists() else Path(source).name
    opener = _from_converted if is_converted(folder) else _from_files
    return opener(folder, name or own, dtype, port)


def _from_files(
    folder: Path, name: str, dtype: str | None, port: Port | None
) -> tuple[Model, Callable[[Mesh | None], dict[str, Any]]]:
    plan = plan_folder(folder, dtype=dtype, port=port)
    model = Model(
        name=name,
        port=plan.port,
        config=plan.config,
        graphdef=plan.graphdef,
        params={},
        processor=plan.port.processor(folder, plan.config),
        fingerprint=fingerprint(folder, plan.raw_config, weights_digest(plan.headers), [dtype]),
    )
    return model, partial(load_params, plan)


def load_params(plan: Plan, mesh: Mesh | None) -> dict[str, Any]:
    """Nested dict of arrays of a plan, sharded over the mesh (or on the first device)."""
    return unflatten(
        {
            path: _place(target, _sharding(path, target.shape, mesh))
            for path, target in plan.targets.items()
        }
    )


def _sharding(path: str, shape: tuple[int, ...], mesh: Mesh | None) -> Sharding:
    if mesh is None:
        return SingleDeviceSharding(jax.local_devices()[0])
    return NamedSharding(mesh, param_spec(path, shape, mesh))


def _place(target: Target, sharding: Sharding) -> jax.Array:
    """One parameter; devices that hold the same shard share one read."""
    seen: dict[tuple[tuple[int, int], ...], np.ndarray] = {}

    def shard(index: Index | None) -> np.ndarray:
        index = index or ()  # None only for scalars
        key = tuple(s.indices(n)[:2] for s, n in zip(index, target.shape, strict=True))
        if key not in seen:
            seen[key] = target.read(index)
        return seen[key]

    return jax.make_array_from_callback(target.shape, sharding, shard, dtype=target.dtype)


def _from_converted(
    folder: Path, name: str, dtype: str | None, port: Port | None
) -> tuple[Model, Callable[[Mesh | None], dict[str, Any]]]:
    opened = open_converted(folder, port)
    manifest = opened.manifest
    model = Model(
        name=name,
        port=opened.port,
        config=opened.config,
        graphdef=opened.graphdef,
        params={},
        processor=opened.port.processor(folder, opened.config),
        fingerprint=fingerprint(
            folder, opened.raw_config, manifest["weights_digest"], [manifest["dtype"], dtype]
        ),
    )
    return model, partial(opened.params, dtype)


@dataclasses.dataclass(frozen=True)
class Converted:
    """A converted folder that has been checked, before its weights are read."""

    folder: Path
    manifest: dict[str, Any]
    raw_config: dict[str, Any]
    port: Port
    config: Any
    graphdef: nnx.GraphDef[VLM]
    stored: Stored

    def params(self, dtype: str | None, mesh: Mesh | None) -> dict[str, Any]:
        """Nested dict of arrays, restored by Orbax into our shardings (never the saved ones)."""
        return _restore(self.folder, self.stored, parse_dtype(dtype), mesh)


def open_converted(folder: Path, port: Port | None = None) -> Converted:
    """Check that config, port and stored parameters of a converted folder fit."""
    manifest = read_manifest(folder)
    raw = read_json(folder / "config.json")
    port = port or port_for(raw)
    config = settled_config(port, raw, tuple(manifest["tensors"]))
    graphdef, abstract = abstract_model(port, config, jnp.float32)
    stored = stored_arrays(folder)
    expected = {path: tuple(leaf.shape) for path, leaf in flatten(abstract).items()}
    have = {path: tuple(shape) for path, (shape, _) in stored.items()}
    if have != expected:
        wrong = sorted(set(have.items()) ^ set(expected.items()))
        raise UserError(
            f"{folder}: its parameters are not those of port {port.family} and config.json "
            f"(first: {wrong[0][0]}); convert the source again"
        )
    check_chunks(folder)
    return Converted(folder, manifest, raw, port, config, graphdef, stored)


def _restore(
    folder: Path, stored: Stored, dtype: np.dtype | None, mesh: Mesh | None
) -> dict[str, Any]:
    import orbax.checkpoint as ocp

    targets = {
        path: jax.ShapeDtypeStruct(shape, dtype or own, sharding=_sharding(path, shape, mesh))
        for path, (shape, own) in stored.items()
    }
    with ocp.StandardCheckpointer() as checkpointer:
        params: dict[str, Any] = checkpointer.restore(
            (folder / PARAMS).absolute(), unflatten(targets)
        )
    if dtype is not None and dtype.itemsize < 4:
        _refuse_overflow(params, stored, dtype)
    return params


def _refuse_overflow(params: dict[str, Any], stored: Stored, dtype: np.dtype) -> None:
    """A cast on restore must not turn numbers into infinities."""
    arrays: dict[str, Any] = flatten(params)
    for path, leaf in arrays.items():
        if stored[path][1] != dtype and not bool(jnp.isfinite(leaf).all()):
            raise UserError(
                f"parameter {path} has values beyond the range of {dtype.name}; choose another "
                "dtype"
            )
