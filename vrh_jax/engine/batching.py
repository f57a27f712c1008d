"""Samples into a few shapes of batches; images are read ahead on threads.

Axis letters: B batch, T sequence.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from model_ports.errors import UserError
from model_ports.images.decode import to_rgb
from model_ports.port import Processor
from model_ports.prompt import Prompt, Side, collate
from model_ports.vlm import Batch
from vrh_jax.data.prompts import TaskPrompt
from vrh_jax.data.sample import Sample

X = TypeVar("X")
Y = TypeVar("Y")


@dataclasses.dataclass(frozen=True)
class Task:
    """A sample and how it is asked."""

    sample: Sample
    prompt: TaskPrompt


@dataclasses.dataclass(frozen=True)
class Ready:
    """A sample with its model input, or the reason why there is none.

    Attributes:
        prompt: None if the image cannot be read.
        error: that reason, else "".
    """

    task: Task
    prompt: Prompt | None
    error: str

    @property
    def sample(self) -> Sample:
        """The sample."""
        return self.task.sample


def prepare(processor: Processor, task: Task) -> Ready:
    """Read the image and render the prompt.

    An image that is unreadable, of another size than annotated, or of a shape that the model
    does not take is a result, not an error.
    """
    sample = task.sample
    images = []
    if sample.image is not None:
        try:
            image = to_rgb(sample.image())
        except UserError as error:
            return Ready(task, None, str(error))
        except Exception as error:  # noqa: BLE001 - PIL raises many kinds on bad files
            return Ready(task, None, f"{type(error).__name__}: {error}")
        if image.size != sample.image_size:
            return Ready(task, None, f"image is {image.size}, expected {sample.image_size}")
        images.append(image)
    text = task.prompt.render(sample)
    try:
        prompt = processor.prepare(text, images, image_first=task.prompt.image_first)
    except UserError as error:
        if not images:
            raise
        return Ready(task, None, str(error))
    return Ready(task, prompt, "")


def blocks(tasks: Sequence[Task], size: int) -> list[list[Task]]:
    """Chunks of at most ``size`` samples of like length, in an order that depends on them only.

    Samples of one chunk share the longest allowed answer.
    """
    groups: dict[int, list[Task]] = {}
    for task in tasks:
        groups.setdefault(task.prompt.max_new, []).append(task)

    def length(task: Task) -> tuple[int, int, str]:
        width, height = task.sample.image_size
        return (width * height, len(task.sample.text), task.sample.id)

    out = []
    for limit in sorted(groups):
        ordered = sorted(groups[limit], key=length)
        out += [ordered[i : i + size] for i in range(0, len(ordered), size)]
    return out


def prefetch(items: Iterable[X], work: Callable[[X], Y], workers: int) -> Iterator[Y]:
    """``map(work, items)`` in order, computed ahead on threads (up to two items per worker).

    Without workers each item is computed when it is asked for, on the caller's thread.
    """
    if workers == 0:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[Y]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def rounded(size: int) -> int:
    """A size at least as large, of few (eight per doubling), wasting at most an eighth."""
    if size <= 16:
        return size
    step = 1 << (size.bit_length() - 4)
    return -(-size // step) * step


def make_batch(
    prompts: Sequence[Prompt], *, rows: int, multiple: int, side: Side = "left"
) -> Batch:
    """Collate to exactly ``rows`` rows; missing rows repeat the last prompt.

    Args:
        rows: B; results of the rows beyond ``len(prompts)`` mean nothing.
        multiple: T is rounded up to a multiple of this.
    """
    padded = [*prompts, *[prompts[-1]] * (rows - len(prompts))]
    batch = collate(padded, side=side, multiple=multiple)
    images: Any = {name: _pad_items(np.asarray(a)) for name, a in batch.images.items()}
    return dataclasses.replace(batch, images=images)


def _pad_items(array: np.ndarray) -> np.ndarray:
    """Zeros after the items (patches, tiles) of axis 1, so that few sizes are compiled."""
    if array.ndim == 1:
        return array
    more = rounded(array.shape[1]) - array.shape[1]
    return np.pad(array, [(0, 0), (0, more)] + [(0, 0)] * (array.ndim - 2))
