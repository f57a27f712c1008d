"""Detection and evaluation samples that share no image."""

import zlib
from collections.abc import Collection

import numpy as np

from model_ports.errors import UserError
from vrh_jax.config import StudyConfig
from vrh_jax.data.registry import load
from vrh_jax.data.sample import Sample


def by_image(samples: list[Sample], seed: int) -> list[Sample]:
    """Samples grouped by image, the images in an order that depends on ids and seed only."""
    images = sorted({s.image_id for s in samples})
    ranks = np.random.default_rng(seed).permutation(len(images))
    rank = {image: int(r) for image, r in zip(images, ranks, strict=True)}
    return sorted(samples, key=lambda s: (rank[s.image_id], s.id))


def study_samples(config: StudyConfig) -> tuple[list[Sample], dict[str, list[Sample]]]:
    """(detection samples, evaluation samples per benchmark).

    Images of the detection samples appear in no evaluation benchmark.

    Raises:
        UserError: a benchmark has too few samples, an unusable box, or no region to score.
    """
    wanted = config.detection
    settings = config.benchmarks[wanted.benchmark]
    pool, _ = load(wanted.benchmark, settings, "detection", wanted.samples)
    pool = [s for s in pool if s.box is not None or s.needle]
    if not pool:
        raise UserError(
            f"detection.benchmark = {wanted.benchmark!r}: no sample has a box or a needle, so "
            "there is no region to score; choose a grounding or needle benchmark"
        )
    detection = by_image(pool, config.split_seed)[: wanted.samples]
    _enough(wanted.benchmark, "detection", len(detection), wanted.samples)
    taken = {s.image_id for s in detection}
    evaluation: dict[str, list[Sample]] = {}
    for entry in config.evaluation:
        settings = config.benchmarks[entry.benchmark]
        samples, generated = load(entry.benchmark, settings, "evaluation", entry.samples)
        if generated and taken & {s.image_id for s in samples}:
            raise UserError(
                f"benchmark {entry.benchmark!r} generates evaluation images that detection "
                "uses; its task must keep the splits apart"
            )
        chosen = _unused(samples, taken, entry.kinds)
        if not generated:
            # Another seed per benchmark, so that benchmarks on the same images differ.
            chosen = by_image(chosen, config.split_seed ^ zlib.crc32(entry.benchmark.encode()))
        evaluation[entry.benchmark] = chosen[: entry.samples]
        _enough(entry.benchmark, "evaluation", len(chosen), entry.samples)
    for name, samples in ((wanted.benchmark, detection), *evaluation.items()):
        check_boxes(name, samples)
    return detection, evaluation


def _unused(samples: list[Sample], taken: Collection[str], kinds: Collection[str]) -> list[Sample]:
    return [s for s in samples if s.image_id not in taken and (not kinds or s.kind in kinds)]


def _enough(benchmark: str, split: str, have: int, want: int) -> None:
    if have < want:
        raise UserError(
            f"benchmark {benchmark!r} has {have} samples for {split}, but {want} are asked for "
            "(images of detection samples are not evaluated); lower `samples` or add data"
        )


def check_boxes(benchmark: str, samples: list[Sample]) -> None:
    """Refuse boxes that are empty or leave their image; grounding needs one."""
    for sample in samples:
        where = f"benchmark {benchmark!r}, sample {sample.id!r}"
        if sample.kind == "grounding" and sample.box is None:
            raise UserError(f"{where}: a grounding sample needs a box")
        if sample.box is None or sample.image_size == (0, 0):
            continue
        x0, y0, x1, y1 = sample.box
        width, height = sample.image_size
        if not (np.isfinite(sample.box).all() and x0 < x1 and y0 < y1):
            raise UserError(
                f"{where}: box {sample.box} is empty; expected x0, y0, x1, y1 with x0 < x1, y0 < y1"
            )
        # Annotations may touch the border with rounding; half a pixel is not outside.
        if x0 < -0.5 or y0 < -0.5 or x1 > width + 0.5 or y1 > height + 0.5:
            raise UserError(
                f"{where}: box {sample.box} leaves its image of {width} x {height} pixels; "
                "expected x0, y0, x1, y1 in pixels of the stored image"
            )
