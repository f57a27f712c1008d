"""Organism tasks as samples: boxes and six kinds of questions about synthetic scenes."""

import dataclasses
from collections.abc import Iterator
from typing import Literal

import numpy as np
from PIL import Image

from model_ports.errors import UserError
from vrh_jax.data.organism_language import QUESTIONS, Query, box_query, question
from vrh_jax.data.organism_scenes import COLORS, SHAPES, SIDE, SIZES, SPLITS, Scene, draw_scene
from vrh_jax.data.sample import Sample, TaskKind

Task = Literal["grounding", "questions", "color", "shape", "size", "spatial", "count", "exist"]
TASKS: tuple[Task, ...] = ("grounding", "questions", *QUESTIONS)  # type: ignore[assignment]
_CHOICES = {
    "color": COLORS,
    "shape": SHAPES,
    "size": SIZES,
    "spatial": ("yes", "no"),
    "exist": ("yes", "no"),
}
_CATEGORIES = {
    "box": "grounding",
    "color": "attribute/color",
    "shape": "attribute/shape",
    "size": "attribute/size",
    "spatial": "spatial",
    "count": "counting",
    "exist": "existence",
}


@dataclasses.dataclass(frozen=True)
class _Render:
    """Draws a scene when called, so that no image is kept."""

    scene: Scene

    def __call__(self) -> Image.Image:
        return self.scene.render()


def organism_samples(
    task: str, split: str, n: int, seed: int = 0, *, per_image: int = 1
) -> list[Sample]:
    """``n`` samples of a task; the same arguments give the same samples.

    Images are drawn when ``Sample.image`` is called. The splits never share a scene, and
    neither do seeds.

    Args:
        task: ``grounding`` (``text`` is the referring expression), one of the question kinds,
            or ``questions`` (all kinds in turn).
        split: ``detection``, ``evaluation`` or ``train``.
        per_image: samples per scene.

    Raises:
        UserError: unknown task or split.
    """
    if task not in TASKS:
        raise UserError(f"unknown organism task {task!r}; tasks are {', '.join(TASKS)}")
    if split not in SPLITS:
        raise UserError(f"unknown split {split!r}; splits are {', '.join(SPLITS)}")
    samples: list[Sample] = []
    for index, (scene, query) in zip(
        range(n), _queries(task, split, seed, per_image), strict=False
    ):
        samples.append(_sample(task, split, seed, index, scene, query))
    return samples


def _queries(task: str, split: str, seed: int, per_image: int) -> Iterator[tuple[Scene, Query]]:
    number = index = 0
    while True:
        scene = draw_scene(seed, split, index)  # type: ignore[arg-type]
        rng = np.random.default_rng((seed, SPLITS.index(split), index, TASKS.index(task)))
        found = 0
        for _ in range(20 * per_image):
            if found == per_image:
                break
            kind = QUESTIONS[number % len(QUESTIONS)] if task == "questions" else task
            query = box_query(scene, rng) if task == "grounding" else question(scene, kind, rng)
            if query is not None:
                found, number = found + 1, number + 1
                yield scene, query
        index += 1


def _sample(task: str, split: str, seed: int, index: int, scene: Scene, query: Query) -> Sample:
    image_id = f"organism-{seed}-{split}-{scene.seed[-1]}"
    kind: TaskKind = "text"
    if query.kind == "box":
        kind = "grounding"
    elif query.kind == "count":
        kind = "count"
    target = scene.things[query.target].box if query.target >= 0 else None
    return Sample(
        id=f"{split}-{task}-{seed}-{index}",
        kind=kind,
        text=query.text,
        image=_Render(scene),
        image_size=(SIDE, SIDE),
        box=None if target is None else tuple(float(v) for v in target),  # type: ignore[arg-type]
        answer=query.answer,
        image_id=image_id,
        group=image_id,
        choices=_CHOICES.get(query.kind, ()),
        category=_CATEGORIES[query.kind],
        source=f"organism-{task}#{index}",
    )
