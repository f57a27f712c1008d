"""Lazy sources of samples: indexable, deterministic, picklable, shardable.

A source has ``__len__`` and ``__getitem__`` and can be pickled, which is what grain calls a
RandomAccessDataSource; a list of samples is one too. Indices are the same in every process, so
process i of n reads ``shard(source, i, n)``.
"""

import dataclasses
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, SupportsIndex, TypeVar

from vrh_jax.data.sample import Sample, TaskKind

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


class Key(NamedTuple):
    """What selecting samples needs to know of each.

    Attributes:
        located: it has a box or a needle, so that heads can be scored on it.
    """

    image_id: str
    id: str
    kind: TaskKind
    located: bool


class Source(Protocol):
    """A list of samples, or anything that can be indexed like one."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: SupportsIndex, /) -> Sample: ...

    def __iter__(self) -> Iterator[Sample]: ...


class Loader(Protocol[R_contra]):
    """Makes samples from annotation rows; a frozen dataclass, so that it can be pickled."""

    def sample(self, row: R_contra, /) -> Sample:
        """The sample of a row. May read an image's header, but decodes nothing."""

    def key(self, row: R_contra, /) -> Key:
        """The key of that sample, from the annotation alone."""


@dataclasses.dataclass(frozen=True)
class Rows(Generic[R]):
    """Samples made from annotation rows when they are asked for.

    Attributes:
        rows: annotations, without pixels.
        loader: makes the samples.
    """

    rows: Sequence[R]
    loader: Loader[R]

    def __repr__(self) -> str:
        # grain stores this text in its checkpoints; it must be short and the same every time.
        return f"Rows({len(self.rows)} of {type(self.loader).__name__})"

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: SupportsIndex, /) -> Sample:
        return self.loader.sample(self.rows[operator.index(index)])

    def __iter__(self) -> Iterator[Sample]:
        return (self.loader.sample(row) for row in self.rows)

    def keys(self) -> list[Key]:
        """All keys, in order."""
        return [self.loader.key(row) for row in self.rows]


@dataclasses.dataclass(frozen=True)
class View:
    """Some samples of a source, in a given order."""

    source: Source
    indices: Sequence[int]

    def __repr__(self) -> str:
        return f"View({len(self.indices)} of {self.source!r})"

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: SupportsIndex, /) -> Sample:
        return self.source[self.indices[operator.index(index)]]

    def __iter__(self) -> Iterator[Sample]:
        return (self.source[i] for i in self.indices)

    def keys(self) -> list[Key]:
        """All keys, in order."""
        found = keys(self.source)
        return [found[i] for i in self.indices]


def key_of(sample: Sample) -> Key:
    """The key of a sample that exists already."""
    return Key(sample.image_id, sample.id, sample.kind, bool(sample.box or sample.needle))


def keys(source: Source) -> list[Key]:
    """Keys of all samples; cheap where the source is lazy."""
    known: Callable[[], list[Key]] | None = getattr(source, "keys", None)
    return known() if known is not None else [key_of(sample) for sample in source]


def shard(source: Source, index: int, count: int) -> View:
    """Every ``count``-th sample from ``index``; the shards of all processes cover each once."""
    if not 0 <= index < count:
        raise ValueError(f"shard {index} of {count}")
    return View(source, range(index, len(source), count))


def take(source: Source, indices: Sequence[int]) -> list[Sample]:
    """The samples at ``indices``, made in ascending order, which suits files of images."""
    made = {i: source[i] for i in sorted(set(indices))}
    return [made[i] for i in indices]
