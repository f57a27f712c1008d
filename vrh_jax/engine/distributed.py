"""Several devices and several processes: mesh, placement, and agreement between hosts.

With one process everything here is a plain function call. On a pod every process runs the
same steps on the same batches; process 0 decides what is finished and writes files.

Axis letters: A position axes, B batch, T sequence.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from model_ports.errors import UserError
from model_ports.sharding import make_mesh
from model_ports.vlm import Batch
from vrh_jax.config import MeshSettings


@dataclasses.dataclass(frozen=True)
class Coordinator:
    """Where the processes of one run meet; empty fields are found by jax (TPU, Slurm, GKE)."""

    address: str | None = None
    processes: int | None = None
    process: int | None = None


def initialise(coordinator: Coordinator | None) -> None:
    """Join the processes of a run; call before anything else touches jax.

    Args:
        coordinator: None for a single process.
    """
    if coordinator is None:
        return
    try:
        jax.distributed.initialize(coordinator.address, coordinator.processes, coordinator.process)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"the processes of this run could not meet: {error}. On a TPU pod run the command on "
            "all workers; elsewhere give --coordinator HOST:PORT --processes N --process-id I"
        ) from error


def study_mesh(settings: MeshSettings) -> Mesh | None:
    """The mesh of a study; None for one device.

    On CPU, one process makes as many virtual devices as the mesh needs, if jax has not started.
    """
    count = settings.data * settings.tensor
    if count == 1:
        return None
    given = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not given and not jax.distributed.is_initialized():
        # Refused once the backend runs; make_mesh then says how many devices there are.
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", count)
    return make_mesh(settings.data, settings.tensor)


@contextlib.contextmanager
def using(mesh: Mesh | None) -> Iterator[None]:
    """Run with this mesh in context, so that activations are annotated."""
    if mesh is None:
        yield
        return
    with jax.set_mesh(mesh):
        yield


def place(tree: Any, mesh: Mesh | None, axis: int = 0) -> Any:
    """Host arrays -> devices, axis ``axis`` sharded over ``data``."""

    def one(leaf: np.ndarray) -> jax.Array:
        if mesh is None:
            return jnp.asarray(leaf)
        spec = PartitionSpec(*(None,) * axis, "data")
        sharding = NamedSharding(mesh, spec)
        return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index])

    return jax.tree.map(one, tree)


def place_batch(batch: Batch, mesh: Mesh | None) -> Batch:
    """A collated batch on the devices, examples sharded over ``data``."""
    return dataclasses.replace(
        batch,
        tokens=place(batch.tokens, mesh),
        valid=place(batch.valid, mesh),
        positions=place(batch.positions, mesh, axis=1),
        visual_index=place(batch.visual_index, mesh),
        images=place(batch.images, mesh),
        prefix=place(batch.prefix, mesh),
    )


def replicated(tree: Any) -> Any:
    """Inside jit: outputs that every process can read whole. A no-op without a mesh."""
    if jax.sharding.get_abstract_mesh().empty:
        return tree
    return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, PartitionSpec()), tree)


def is_main() -> bool:
    """This process writes files and talks to the user."""
    return jax.process_index() == 0


def agree(value: Any) -> Any:
    """Process 0's JSON value, on every process.

    If each host looked for finished files itself, slow listings would give them different
    numbers of steps, and the collectives of the models would hang.
    """
    if jax.process_count() == 1:
        return value
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
    padded = np.zeros(size, np.uint8)
    padded[: min(size, len(data))] = data[:size]
    return json.loads(bytes(np.asarray(multihost_utils.broadcast_one_to_all(padded))).decode())


def check_same(value: Any, what: str) -> None:
    """Raise on every process if a JSON value is not the same on all of them.

    Raises:
        UserError: it differs, for instance since a host has other files.
    """
    own = hashlib.sha256(json.dumps(value).encode()).hexdigest()
    if any_process(agree(own) != own):
        raise UserError(
            f"the processes of this run have different {what}; all hosts need the same files "
            "(annotations and images) under the same paths"
        )


def any_process(flag: bool) -> bool:
    """True on every process if it is on one."""
    return any_processes([flag])[0]


def any_processes(flags: Sequence[bool]) -> list[bool]:
    """Each flag: True on every process if it is on one. The same number of flags everywhere."""
    if jax.process_count() == 1:
        return list(flags)
    gathered = multihost_utils.process_allgather(np.array(flags, np.int32))
    return [bool(flag) for flag in np.any(gathered.reshape(-1, len(flags)), axis=0)]
