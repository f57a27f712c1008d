"""One table from logical axes to mesh axes, for parameters and activations.

A mesh has the axes ``data`` (examples) and ``tensor`` (heads, MLP, vocabulary). Without a
mesh in context every function here is a no-op, so the same code runs on one device.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from model_ports.errors import UserError

MESH_AXES = ("data", "tensor")

LOGICAL_TO_MESH: Mapping[str, str | None] = {
    "batch": "data",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "vocab": "tensor",
}

# (regular expression over a parameter path, logical axes counted from the last dimension).
# Leading axes that a row does not name (the stacked layers) are replicated.
PARAM_AXES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"embed/embedding$", ("vocab", None)),
    (r"lm_head/kernel$", (None, "vocab")),
    (r"decoder/.*attn/q/kernel$", (None, "heads", None)),
    (r"decoder/.*attn/q/bias$", ("heads", None)),
    (r"decoder/.*attn/[kv]/kernel$", (None, "kv_heads", None)),
    (r"decoder/.*attn/[kv]/bias$", ("kv_heads", None)),
    (r"vision/.*attn/[qkv]/kernel$", (None, "heads", None)),
    (r"vision/.*attn/[qkv]/bias$", ("heads", None)),
    (r"attn/kv_b/kernel$", (None, "heads", None)),
    (r"attn/o/kernel$", ("heads", None, None)),
    # Experts are split like one MLP: every device holds its share of each.
    (r"(mlp|experts|shared)/(gate|up|fc1)/kernel$", (None, "mlp")),
    (r"mlp/(gate|up|fc1)/bias$", ("mlp",)),
    (r"(mlp|experts|shared)/(down|fc2)/kernel$", ("mlp", None)),
)


def make_mesh(data: int, tensor: int, devices: list[jax.Device] | None = None) -> Mesh:
    """Mesh of ``data * tensor`` devices with the axes of MESH_AXES."""
    devices = jax.devices() if devices is None else devices
    if data * tensor != len(devices):
        raise UserError(
            f"mesh {data} x {tensor} (data x tensor) needs {data * tensor} devices, "
            f"but {len(devices)} are there; choose sizes whose product is {len(devices)}"
        )
    kinds = (AxisType.Auto, AxisType.Auto)
    return jax.make_mesh((data, tensor), MESH_AXES, axis_types=kinds, devices=devices)


def _spec(
    axes: tuple[str | None, ...], shape: tuple[int, ...], mesh_shape: Mapping[str, int]
) -> PartitionSpec:
    names: list[str | None] = []
    for axis, size in zip(axes, shape, strict=True):
        mesh_axis = LOGICAL_TO_MESH[axis] if axis else None
        # An axis that does not divide (4 KV heads on 8 chips) is replicated.
        fits = mesh_axis in mesh_shape and size % mesh_shape[mesh_axis] == 0 if mesh_axis else False
        names.append(mesh_axis if fits else None)
    return PartitionSpec(*names)


def param_spec(path: str, shape: tuple[int, ...], mesh: Mesh | AbstractMesh) -> PartitionSpec:
    """Partition spec of the parameter at ``path`` (slash-joined)."""
    for pattern, axes in PARAM_AXES:
        if re.search(pattern, path):
            lead = (None,) * (len(shape) - len(axes))
            return _spec(lead + axes, shape, dict(mesh.shape))
    return PartitionSpec()


def param_shardings(abstract: Any, mesh: Mesh) -> Any:
    """Tree of NamedSharding for a nested dict of arrays or ShapeDtypeStructs."""

    def one(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        name = "/".join(str(p.key) for p in path)
        return NamedSharding(mesh, param_spec(name, leaf.shape, mesh))

    return jax.tree_util.tree_map_with_path(one, abstract)


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Annotate an activation with logical axes; a no-op without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return x
    return jax.lax.with_sharding_constraint(x, _spec(axes, x.shape, dict(mesh.shape)))


def per_device(
    fn: Callable[..., Any],
    args: Sequence[jax.Array],
    in_axes: Sequence[tuple[str | None, ...]],
    out_axes: tuple[str | None, ...],
) -> Any:
    """``fn(*args)`` on each device's own shards; the outputs are summed over split axes that
    are not in ``out_axes``. Without a mesh it is the plain call.

    For operations that must not be partitioned by the compiler, such as sorting tokens.

    Args:
        in_axes: logical axes of every argument.
        out_axes: of the output or of every output; a batch axis is as long as in ``args[0]``.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return fn(*args)
    shape = dict(mesh.shape)
    specs = tuple(_spec(axes, x.shape, shape) for axes, x in zip(in_axes, args, strict=True))
    out = _spec(out_axes, args[0].shape, shape)
    split = {name for spec in specs for name in spec if name} - {name for name in out if name}

    def local(*shards: jax.Array) -> Any:
        result = fn(*shards)
        return jax.lax.psum(result, tuple(sorted(split))) if split else result

    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=out)(*args)
