"""``vrh bench``: measure the parts on this machine."""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from model_ports.errors import UserError


def add_bench(subparsers: Any) -> None:
    """Add the ``bench`` command (``run`` is set to its function)."""
    parser = subparsers.add_parser("bench", help="measure the parts on this machine")
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    data = parts.add_parser(
        "data",
        help="samples/s of reading, decoding and preprocessing images",
        description="Read, decode and preprocess images for Qwen2.5-VL: time per stage, samples/s "
        "per core, and scaling over worker threads, measured side by side in every round.",
    )
    data.add_argument("folder", type=Path, nargs="?", help="images; default: generated ones")
    data.add_argument("--images", type=int, default=64, help="number of images (default 64)")
    data.add_argument(
        "--workers", default="1,2,4", help="numbers of threads, with commas (default 1,2,4)"
    )
    data.add_argument("--rounds", type=int, default=3, help="repetitions (default 3)")
    data.add_argument(
        "--device-rate", type=float, metavar="N", help="samples/s of a device, to compare with"
    )
    data.add_argument("--json", action="store_true", help="print one JSON document")
    data.set_defaults(run=run_data)


def run_data(args: argparse.Namespace) -> int:
    """``vrh bench data``."""
    from vrh_jax.bench.data import bench_data, find_images, generate_images

    try:
        workers = [int(w) for w in args.workers.split(",")]
    except ValueError:
        raise UserError(f"--workers {args.workers!r}: expected numbers with commas") from None
    if args.images < 1 or args.rounds < 1 or min(workers) < 0:
        raise UserError("--images and --rounds must be at least 1, --workers at least 0")
    with tempfile.TemporaryDirectory() as temporary:
        if args.folder is None:
            paths = generate_images(Path(temporary), args.images)
        else:
            paths = find_images(args.folder, args.images)
        found = bench_data(paths, workers, args.rounds, args.device_rate)
    found = {"source": "generated" if args.folder is None else str(args.folder), **found}
    print(json.dumps(found) if args.json else _text(found))
    return 0


def _text(found: dict[str, Any]) -> str:
    times = found["milliseconds"]
    size = f"{found['mean_megapixels']:.2f} megapixels and {found['mean_kilobytes']:.0f} kB"
    lines = [
        f"{found['images']} images ({found['source']}), {size} each, {found['cores']} cores",
        "time of one core: " + ", ".join(f"{name} {ms:.1f} ms" for name, ms in times.items()),
        f"{found['samples_per_s_per_core']:.1f} samples/s per core",
        "workers  samples/s  relative to none (what hashing gains from as many threads)",
    ]
    lines += [
        f"{s['workers']:7d}  {s['samples_per_s']:9.1f}  {s['ratio']:.2f} ({s['machine']:.2f})"
        for s in found["scaling"]
    ]
    if "cores_needed" in found:
        lines.append(
            f"a device that answers {found['device_samples_per_s']:g} samples/s needs "
            f"{found['cores_needed']:.1f} cores for this"
        )
    return "\n".join(lines)
