"""How fast images are read, decoded and preprocessed for Qwen2.5-VL, and on how many threads.

The work is that of a study: the same decoding, the same patches, the same threads that run
ahead of the device (``vrh_jax.engine.batching.prefetch``).
"""

import dataclasses
import hashlib
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from model_ports.errors import UserError
from model_ports.images.decode import load_image
from model_ports.images.qwen_pixels import QwenPixels
from model_ports.images.resize import CLIP_MEAN, CLIP_STD
from model_ports.images.window_patches import window_patches
from vrh_jax.engine.batching import prefetch

# preprocessor_config.json and vision_config of Qwen/Qwen2.5-VL-7B-Instruct.
PATCH, MERGE, TEMPORAL, WINDOW = 14, 2, 2, 112
PIXELS = QwenPixels(
    factor=PATCH * MERGE,
    min_pixels=3136,
    max_pixels=12845056,
    mean=CLIP_MEAN,
    std=CLIP_STD,
)
_KINDS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp"})
# Sides of COCO's images, long one 640, in about their frequency.
_SIZES = ((640, 480), (640, 427), (480, 640), (640, 426), (427, 640), (500, 375))
# Hashing one block takes about as long as preparing one image.
_BLOCK, _HASHES = bytes(8 << 20), 16
X = TypeVar("X")


@dataclasses.dataclass(frozen=True)
class Scaling:
    """Speed with a number of worker threads, next to that without any.

    Attributes:
        workers: threads; 0 works on the caller's thread.
        samples_per_s: median over the rounds.
        ratio: median over the rounds of this speed divided by that of 0 workers in the same
            round, so that a change of the machine's load in between matters little.
        machine: the same ratio for hashing, which threads do without waiting for each other:
            what the machine had to give in the same minutes.
    """

    workers: int
    samples_per_s: float
    ratio: float
    machine: float


def find_images(folder: Path, count: int) -> list[Path]:
    """The first ``count`` images below a folder, by name.

    Raises:
        UserError: there is none.
    """
    found = sorted(p for p in folder.rglob("*") if p.suffix.lower() in _KINDS and p.is_file())
    if not found:
        raise UserError(f"{folder}: no images ({', '.join(sorted(_KINDS))}) in it")
    return found[:count]


def generate_images(folder: Path, count: int) -> list[Path]:
    """JPEG files of COCO's sizes and of about its bytes per pixel; the same on every call."""
    paths = []
    for index in range(count):
        width, height = _SIZES[index % len(_SIZES)]
        rng = np.random.default_rng(index)
        # Structure at several scales costs a decoder what a photograph does.
        image = np.zeros((height, width, 3), np.float32)
        for scale, strength in ((60, 70), (16, 40), (4, 20), (1, 8)):
            shape = (-(-height // scale), -(-width // scale), 3)
            coarse = rng.normal(scale=strength, size=shape).astype(np.float32)
            image += coarse.repeat(scale, axis=0).repeat(scale, axis=1)[:height, :width]
        path = folder / f"{index:05d}.jpg"
        Image.fromarray((image + 128).clip(0, 255).astype(np.uint8)).save(path, quality=90)
        paths.append(path)
    return paths


def patches(image: Image.Image) -> Any:
    """What a Qwen2.5-VL prompt holds of an image."""
    return window_patches(
        PIXELS.pixels(image),
        patch=PATCH,
        temporal=TEMPORAL,
        merge=MERGE,
        side=WINDOW // (PATCH * MERGE),
    )


def prepare_file(path: Path) -> Any:
    """Read, decode and preprocess one image."""
    return patches(load_image(path))


def stages(paths: Sequence[Path]) -> dict[str, float]:
    """Median milliseconds per image of each stage, on one thread.

    Reading is timed by the clock, the rest by what the thread used of a core, so that other
    programs on the machine do not count.
    """
    spent: dict[str, list[float]] = {"read": [], "decode": [], "preprocess": []}
    for path in paths:
        started = time.perf_counter()
        data = path.read_bytes()
        spent["read"].append(time.perf_counter() - started)
        started = time.thread_time()
        image = load_image(data)
        decoded = time.thread_time()
        patches(image)
        spent["decode"].append(decoded - started)
        spent["preprocess"].append(time.thread_time() - decoded)
    return {name: 1000 * statistics.median(values) for name, values in spent.items()}


def scaling(
    paths: Sequence[Path],
    workers: Sequence[int],
    rounds: int,
    work: Callable[[Path], Any] = prepare_file,
) -> list[Scaling]:
    """Speed for each number of workers, all measured in turn in every round."""
    counts = [0, *(w for w in workers if w > 0)]
    speeds: dict[int, list[float]] = {count: [] for count in counts}
    machine: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(rounds):
        for count in counts:
            speeds[count].append(_speed(paths, work, count))
            machine[count].append(_speed(range(_HASHES), _hash, count))
    return [
        Scaling(
            count,
            statistics.median(speeds[count]),
            _ratio(speeds[count], speeds[0]),
            _ratio(machine[count], machine[0]),
        )
        for count in counts
    ]


def _speed(items: Sequence[X], work: Callable[[X], Any], workers: int) -> float:
    started = time.perf_counter()
    for _done in prefetch(items, work, workers):
        pass
    return len(items) / (time.perf_counter() - started)


def _ratio(speeds: list[float], alone: list[float]) -> float:
    return statistics.median(s / a for s, a in zip(speeds, alone, strict=True))


def _hash(_index: int) -> bytes:
    return hashlib.sha256(_BLOCK).digest()


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def bench_data(
    paths: Sequence[Path], workers: Sequence[int], rounds: int, device_rate: float | None
) -> dict[str, Any]:
    """Everything that ``vrh bench data`` prints, as plain values.

    Args:
        device_rate: samples per second that a device answers; adds how many cores feed it.

    Raises:
        UserError: an image cannot be decoded.
    """
    for path in paths[:2]:
        prepare_file(path)  # imports and caches
    times = stages(paths)
    per_core = 1000 / sum(times.values())
    pixels = [load_image(path).size for path in paths]
    found: dict[str, Any] = {
        "images": len(paths),
        "mean_megapixels": float(np.mean([w * h for w, h in pixels])) / 1e6,
        "mean_kilobytes": float(np.mean([path.stat().st_size for path in paths])) / 1e3,
        "cores": cores(),
        "rounds": rounds,
        "milliseconds": times,
        "samples_per_s_per_core": per_core,
        "scaling": [dataclasses.asdict(s) for s in scaling(paths, workers, rounds)],
    }
    if device_rate is not None:
        found["device_samples_per_s"] = device_rate
        found["cores_needed"] = device_rate / per_core
    return found
