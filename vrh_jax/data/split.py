"""Detection and evaluation samples that share no image."""

import zlib
from collections.abc import Collection, Sequence

import numpy as np

from model_ports.errors import UserError
from vrh_jax.config import EvaluationSettings, StudyConfig
from vrh_jax.data.images import readable
from vrh_jax.data.registry import load
from vrh_jax.data.sample import Sample
from vrh_jax.data.source import Key, keys, take


def by_image(found: Sequence[Key], seed: int) -> list[int]:
    """Indices grouped by image, the images in an order that depends on ids and seed only."""
    images = sorted({key.image_id for key in found})
    ranks = np.random.default_rng(seed).permutation(len(images))
    rank = {image: int(r) for image, r in zip(images, ranks, strict=True)}
    return sorted(range(len(found)), key=lambda i: (rank[found[i].image_id], found[i].id))


def study_samples(config: StudyConfig) -> tuple[list[Sample], dict[str, list[Sample]]]:
    """(detection samples, evaluation samples per benchmark).

    Images of the detection samples appear in no evaluation benchmark.

    Raises:
        UserError: a benchmark has too few samples, an unusable box, no region to score, or no
            image that can be read.
    """
    wanted = config.detection
    settings = config.benchmarks[wanted.benchmark]
    pool, _ = load(wanted.benchmark, settings, "detection", wanted.samples)
    found = keys(pool)
    usable = [i for i, key in enumerate(found) if key.located]
    if not usable:
        raise UserError(
            f"detection.benchmark = {wanted.benchmark!r}: no sample has a box or a needle, so "
            "there is no region to score; choose a grounding or needle benchmark"
        )
    order = [usable[i] for i in by_image([found[i] for i in usable], config.split_seed)]
    detection = take(pool, order[: wanted.samples])
    _enough(wanted.benchmark, "detection", len(detection), wanted.samples)
    taken = {s.image_id for s in detection}
    evaluation = {entry.benchmark: _evaluated(config, entry, taken) for entry in config.evaluation}
    for name, samples in ((wanted.benchmark, detection), *evaluation.items()):
        check_boxes(name, samples)
        check_images(name, samples)
    return detection, evaluation


def _evaluated(
    config: StudyConfig, entry: EvaluationSettings, taken: Collection[str]
) -> list[Sample]:
    """The samples of one evaluation benchmark, on none of the images in ``taken``."""
    name = entry.benchmark
    pool, generated = load(name, config.benchmarks[name], "evaluation", entry.samples)
    found = keys(pool)
    if generated and any(key.image_id in taken for key in found):
        raise UserError(
            f"benchmark {name!r} generates evaluation images that detection uses; its task must "
            "keep the splits apart"
        )
    chosen = [
        i
        for i, key in enumerate(found)
        if key.image_id not in taken and (not entry.kinds or key.kind in entry.kinds)
    ]
    if not generated:
        # Another seed per benchmark, so that benchmarks on the same images differ.
        seed = config.split_seed ^ zlib.crc32(name.encode())
        chosen = [chosen[i] for i in by_image([found[i] for i in chosen], seed)]
    _enough(name, "evaluation", len(chosen), entry.samples)
    return take(pool, chosen[: entry.samples])


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


def check_images(benchmark: str, samples: Sequence[Sample]) -> None:
    """Refuse a benchmark of whose images none can be opened: their folder is wrong.

    Single missing or broken images are failed samples in the results, and stay in the
    denominator.
    """
    reasons = []
    for sample in samples:
        if sample.image is None:
            return
        reason = readable(sample.image)
        if not reason:
            return
        reasons.append(reason)
    if reasons:
        raise UserError(
            f"benchmark {benchmark!r}: none of its {len(reasons)} images can be opened; the first "
            f"one: {reasons[0]}. Give the folder of the images in the benchmark's options"
        )
