"""First thing to run on a slice: do the devices work together, and can results be written?

Prints one line per step and exits with 1 at the first that fails:

    python tpu_scripts/smoke.py                                   # one TPU VM, or a GPU, or CPU
    python tpu_scripts/smoke.py --distributed --out gs://B/run    # on all workers of a slice
    JAX_NUM_CPU_DEVICES=8 JAX_PLATFORMS=cpu python tpu_scripts/smoke.py --tensor 4
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from model_ports.errors import UserError

# A float32 run on several devices adds up in another order, nothing more.
TOLERANCE = 1e-4


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tensor", type=int, help="devices that share one model; default: up to 4")
    parser.add_argument("--out", help="folder to try a write in; a path or gs://...")
    group = parser.add_argument_group("several processes")
    group.add_argument("--distributed", action="store_true", help="join the other workers")
    group.add_argument("--coordinator", metavar="HOST:PORT", help="found by itself on TPU")
    group.add_argument("--processes", type=int)
    group.add_argument("--process-id", type=int)
    return parser.parse_args(argv)


def say(step: str, text: str) -> None:
    """One line of the report, with the process it comes from."""
    print(f"[{jax.process_index()}/{jax.process_count()}] {step:<8} {text}", flush=True)


def choose_mesh(tensor: int | None) -> Any:
    """Mesh over all devices; by default the largest of 4, 2, 1 that divides them shares a model."""
    from model_ports.sharding import make_mesh

    count = jax.device_count()
    tensor = tensor or next(n for n in (4, 2, 1) if count % n == 0)
    if count % tensor:
        raise UserError(f"--tensor {tensor} does not divide the {count} devices")
    return make_mesh(count // tensor, tensor)


def check_sum(mesh: Any) -> str:
    """Every device adds its own number to a sum that all of them see."""
    from jax.sharding import PartitionSpec as P

    axes = mesh.axis_names
    count = mesh.size
    numbers = jax.make_array_from_callback(
        (count,),
        jax.sharding.NamedSharding(mesh, P(axes)),
        lambda index: np.arange(count, dtype=np.float32)[index],
    )
    add = jax.shard_map(
        lambda x: jax.lax.psum(x, axes), mesh=mesh, in_specs=P(axes), out_specs=P(axes)
    )
    totals = {float(shard.data[0]) for shard in jax.jit(add)(numbers).addressable_shards}
    expected = count * (count - 1) / 2
    if totals != {expected}:
        raise UserError(f"the devices add up to {totals}, expected {expected}")
    return f"{count} devices add up to {expected:.0f}"


def check_scoring(mesh: Any) -> str:
    """Score and answer with a small random decoder, sharded and on one device."""
    from flax import nnx

    from model_ports.block import DecoderConfig
    from model_ports.decoder import Decoder
    from model_ports.nn.rope import Rope
    from model_ports.vlm import VLM
    from vrh_jax.engine.self_check import SelfCheck, relative_error, whole

    cfg = DecoderConfig(
        vocab=512,
        layers=4,
        dim=256,
        heads=8,
        kv_heads=4,
        head_dim=32,
        mlp_dim=512,
        norm_eps=1e-6,
        rope=Rope(theta=1e4),
    )
    graphdef, state = nnx.split(VLM(Decoder(cfg, rngs=nnx.Rngs(0))))
    params = jax.tree.map(np.asarray, nnx.to_pure_dict(state))
    check = SelfCheck(graphdef, params, rows=4 * mesh.shape["data"], new=4)
    # TPUs multiply float32 in bfloat16 unless told otherwise.
    with jax.default_matmul_precision("highest"):
        expected = check.alone()
        start = time.monotonic()
        got = whole(check.run(mesh), mesh)
    errors = {
        "logits": relative_error(got.logits, expected.logits),
        "head scores": relative_error(got.tapped.mass, expected.tapped.mass),
    }
    text = ", ".join(f"{name} {value:.1e}" for name, value in errors.items())
    if not all(value < TOLERANCE for value in errors.values()):
        raise UserError(f"sharded and unsharded runs differ: {text} (allowed {TOLERANCE:.0e})")
    return f"equal to one device ({text}), {time.monotonic() - start:.1f} s with compilation"


def check_write(out: str) -> str:
    """Every process writes a small file and reads it back."""
    from etils import epath

    file = epath.Path(out) / "smoke" / f"process-{jax.process_index():03d}.json"
    text = json.dumps({"devices": jax.device_count(), "jax": jax.__version__})
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        back = file.read_text()
    except Exception as error:
        raise UserError(f"cannot write {file}: {type(error).__name__}: {error}") from error
    if back != text:
        raise UserError(f"{file} reads back differently from what was written")
    return str(file)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the steps; returns the exit status."""
    args = parse(argv)
    step = "start"
    try:
        if args.distributed:
            from vrh_jax.engine.distributed import Coordinator, initialise

            initialise(Coordinator(args.coordinator, args.processes, args.process_id))
        step = "devices"
        kinds = sorted({device.device_kind for device in jax.devices()})
        say(step, f"{jax.device_count()} ({jax.local_device_count()} here), {', '.join(kinds)}")
        step = "mesh"
        mesh = choose_mesh(args.tensor)
        say(step, " x ".join(f"{name} {size}" for name, size in mesh.shape.items()))
        step = "sum"
        say(step, check_sum(mesh))
        step = "scoring"
        say(step, check_scoring(mesh))
        if args.out:
            step = "write"
            say(step, check_write(args.out))
    except (UserError, RuntimeError) as error:
        print(f"smoke: {step} failed: {error}", file=sys.stderr)
        return 1
    say("done", "all steps passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
