"""Detection and evaluation samples that share no image."""

import dataclasses
import zlib
from collections.abc import Callable, Collection, Sequence

import numpy as np

from model_ports.errors import UserError
from vrh_jax.config import StudyConfig
from vrh_jax.data.images import readable
from vrh_jax.data.registry import Split, load
from vrh_jax.data.sample import Sample
from vrh_jax.data.source import Key, Source, keys, take


@dataclasses.dataclass(frozen=True)
class Pool:
    """The samples of a benchmark that a study may use.

    Attributes:
        source: all samples.
        indices: those of the wanted kinds.
        keys: of these indices.
        generated: made for this split, on images of its own.
    """

    source: Source
    indices: list[int]
    keys: list[Key]
    generated: bool

    def without(self, taken: Collection[str]) -> "Pool":
        """The samples on other images."""
        kept = [n for n, key in enumerate(self.keys) if key.image_id not in taken]
        return dataclasses.replace(
            self, indices=[self.indices[n] for n in kept], keys=[self.keys[n] for n in kept]
        )

    def take(self, order: Sequence[int]) -> list[Sample]:
        """Samples by their places in ``keys``."""
        return take(self.source, [self.indices[n] for n in order])


def turns(found: Sequence[Key], seed: int) -> list[tuple[int, int]]:
    """Per sample (rank of its image, turn among its image's samples), drawn at random.

    The draw depends on ids and seed, not on the order of the samples.
    """
    images = sorted({key.image_id for key in found})
    ranks = np.random.default_rng(seed).permutation(len(images))
    rank = {image: int(r) for image, r in zip(images, ranks, strict=True)}
    by_id = sorted(range(len(found)), key=lambda i: found[i].id)
    drawn = np.random.default_rng([seed, 1]).permutation(len(found))
    turn, seen = [0] * len(found), dict.fromkeys(images, 0)
    for i in (by_id[n] for n in drawn):
        turn[i] = seen[found[i].image_id]
        seen[found[i].image_id] += 1
    return [(rank[key.image_id], turn[i]) for i, key in enumerate(found)]


def spread(found: Sequence[Key], seed: int) -> list[int]:
    """All samples, one of every image first, then a second of those that have one, and so on."""
    places = turns(found, seed)
    return sorted(range(len(found)), key=lambda i: places[i][::-1])


def on_few_enough_images(
    found: Sequence[Key], seed: int, count: int, fits: Callable[[Collection[str]], bool]
) -> list[int]:
    """``count`` samples on as many images as ``fits`` allows; on as few as possible if it never
    does."""
    places = turns(found, seed)
    order = sorted(range(len(found)), key=lambda i: places[i])
    most = max(turn for _, turn in places) + 1
    per_image = 1
    while True:
        chosen = [i for i in order if places[i][1] < per_image][:count]
        enough = len(chosen) == count and fits({found[i].image_id for i in chosen})
        if enough or per_image >= most:
            return chosen
        per_image *= 2


def study_samples(config: StudyConfig) -> tuple[list[Sample], dict[str, list[Sample]]]:
    """(detection samples, evaluation samples per benchmark).

    Images of the detection samples appear in no evaluation benchmark. Samples are drawn on as
    many images as there are, since those of one image tell less; detection takes fewer images,
    with more samples of each, where evaluation would otherwise lack some.

    Raises:
        UserError: a benchmark has too few samples, an unusable box, no region to score, or no
            image that can be read.
    """
    wanted = config.detection
    pool = _pool(config, wanted.benchmark, "detection", wanted.samples)
    located = [n for n, key in enumerate(pool.keys) if key.located]
    if not located:
        raise UserError(
            f"detection.benchmark = {wanted.benchmark!r}: no sample has a box or a needle, so "
            "there is no region to score; choose a grounding or needle benchmark"
        )
    pools = {
        entry.benchmark: _pool(config, entry.benchmark, "evaluation", entry.samples, entry.kinds)
        for entry in config.evaluation
    }
    needed = {e.benchmark: e.samples for e in config.evaluation}

    def fits(taken: Collection[str]) -> bool:
        return all(
            sum(key.image_id not in taken for key in pools[name].keys) >= samples
            for name, samples in needed.items()
            if not pools[name].generated
        )

    candidates = [pool.keys[n] for n in located]
    order = on_few_enough_images(candidates, config.split_seed, wanted.samples, fits)
    detection = pool.take([located[n] for n in order])
    _enough(wanted.benchmark, "detection", len(detection), wanted.samples)
    taken = {s.image_id for s in detection}
    evaluation = {
        name: _evaluated(config, name, pools[name], samples, taken)
        for name, samples in needed.items()
    }
    for name, samples in ((wanted.benchmark, detection), *evaluation.items()):
        check_boxes(name, samples)
        check_images(name, samples)
    return detection, evaluation


def _pool(
    config: StudyConfig, name: str, split: Split, count: int, kinds: Collection[str] = ()
) -> Pool:
    source, generated = load(name, config.benchmarks[name], split, count)
    found = keys(source)
    indices = [i for i, key in enumerate(found) if not kinds or key.kind in kinds]
    return Pool(source, indices, [found[i] for i in indices], generated)


def _evaluated(
    config: StudyConfig, name: str, pool: Pool, count: int, taken: Collection[str]
) -> list[Sample]:
    """The samples of one evaluation benchmark, on none of the images in ``taken``."""
    free = pool.without(taken)
    if pool.generated and len(free.keys) < len(pool.keys):
        raise UserError(
            f"benchmark {name!r} generates evaluation images that detection uses; its task must "
            "keep the splits apart"
        )
    _enough(name, "evaluation", len(free.keys), count)
    # Another seed per benchmark, so that benchmarks on the same images differ.
    seed = config.split_seed ^ zlib.crc32(name.encode())
    order = list(range(count)) if pool.generated else spread(free.keys, seed)[:count]
    return free.take(order)


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
