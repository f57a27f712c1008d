"""Token sequences of the organisms' training: question, visual slots, answer.

Axis letters: B batch, T sequence, Q answer rows, W wrapper rows, O objects, V visual slots.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from vrh_jax.data.organism_language import Query, box_query, question
from vrh_jax.data.organism_scenes import COLORS, GRID, SHAPES, SIZES, Scene
from vrh_jax.organisms import vocab

ROWS = 7  # the longest answer (6 tokens) and the end token
WRAPPER = 4  # rows between the image and the row that predicts the first answer token
FORMAT_WEIGHT = 0.1  # loss weight of tokens that are the same in every answer
MAX_OBJECTS = 6


@dataclasses.dataclass(frozen=True)
class Item:
    """One query with its answer in one style."""

    style: vocab.Style
    query: Query
    answer: tuple[int, ...]
    weights: tuple[float, ...]

    @property
    def prompt(self) -> str:
        """User text, without the image."""
        if self.query.kind == "box":
            return vocab.BOX_PROMPTS[self.style].format(self.query.text)
        return self.query.text


def make_item(
    scene: Scene, query: Query, style: vocab.Style, *, short: bool = False, weight: float = 1.0
) -> Item:
    """Answer tokens (with the end token) and their loss weights.

    Args:
        short: a box answer stops after its first coordinate (curriculum).
        weight: loss weight of the answer to a question; a coordinate has 1.
    """
    if query.kind != "box":
        word = vocab.token(vocab.answer_word(query.answer))
        return Item(style, query, (word, vocab.token(vocab.END)), (weight, FORMAT_WEIGHT))
    box = scene.things[query.target].box
    ids = vocab.encode(vocab.box_answer(style, box))
    digits = {vocab.token(t) for t in vocab.box_tokens(style, box)}
    weights = [1.0 if i in digits else FORMAT_WEIGHT for i in ids]
    if short:
        first = weights.index(1.0) + 1
        return Item(style, query, ids[:first], tuple(weights[:first]))
    return Item(style, query, (*ids, vocab.token(vocab.END)), (*weights, FORMAT_WEIGHT))


def draw_items(
    scene: Scene,
    rng: np.random.Generator,
    count: int,
    *,
    simple: bool,
    short: bool,
    weight: float,
    boxes: float,
    kinds: Sequence[str],
    styles: Sequence[vocab.Style],
) -> list[Item]:
    """``count`` random queries about a scene; ``boxes`` is the share of box queries, the rest
    are questions of the given kinds; ``short`` and ``weight`` as in ``make_item``."""
    items: list[Item] = []
    while len(items) < count:
        style = styles[int(rng.integers(len(styles)))]
        if rng.random() < boxes:
            query: Query | None = box_query(scene, rng, simple=simple)
        else:
            kind = kinds[int(rng.integers(len(kinds)))]
            query = question(scene, kind, rng, simple=simple)
        if query is not None:
            items.append(make_item(scene, query, style, short=short, weight=weight))
    return items


def prompt_ids(item: Item, slots: int) -> tuple[list[int], int]:
    """Prompt tokens with ``slots`` visual tokens, and the index of the first of them."""
    style = item.style
    before = [*vocab.encode(vocab.OPEN_TURN + item.prompt + vocab.IMAGE_OPEN[style])]
    after = vocab.encode(vocab.IMAGE_CLOSE[style] + vocab.CLOSE_TURN)
    return [*before, *[vocab.token(vocab.IMAGE_TOKEN[style])] * slots, *after], len(before)


def answer_rows(length: int, item: Item) -> dict[str, np.ndarray]:
    """Rows, targets and weights of an answer after a prompt of ``length`` tokens.

    Returns:
        rows int32 [Q], targets int32 [Q], weights float32 [Q] (loss), looks float32 [Q] (1 for
        the rows that predict the answer before its end token).
    """
    n = len(item.answer)
    rows = np.full(ROWS, length - 1, np.int32)
    rows[:n] = length - 1 + np.arange(n)
    out = {"rows": rows, "targets": np.zeros(ROWS, np.int32)}
    out["targets"][:n] = item.answer
    weights, looks = np.zeros(ROWS, np.float32), np.zeros(ROWS, np.float32)
    weights[:n] = item.weights
    looks[:n] = [float(t != vocab.token(vocab.END)) for t in item.answer]
    return out | {"weights": weights, "looks": looks}


def things_arrays(scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """(attribute word ids int32 [O, 3], coordinate bins int32 [O, 4]), zero-padded."""
    words = np.zeros((MAX_OBJECTS, 3), np.int32)
    bins = np.zeros((MAX_OBJECTS, 4), np.int32)
    for i, t in enumerate(scene.things):
        names = (SIZES[t.size], COLORS[t.color], SHAPES[t.shape])
        words[i] = [vocab.token(f" {n}") for n in names]
        bins[i] = [v // GRID for v in t.box]
    return words, bins


def symbolic_batch(
    scenes: Sequence[Scene], items: Sequence[Sequence[Item]], length: int, *, cells: bool
) -> dict[str, np.ndarray]:
    """Right-padded sequences in which objects stand for the image.

    Args:
        items: the queries of each scene.
        length: T.
        cells: one visual token per image cell (36) instead of one per object.

    Returns:
        tokens, visual (slot of the object list, -1 text, -2 background cell) and valid [B, T];
        words [B, O, 3], bins [B, O, 4]; and the arrays of ``answer_rows`` [B, Q].
    """
    rows: list[dict[str, np.ndarray]] = []
    for scene, queries in zip(scenes, items, strict=True):
        owner = scene.cells() if cells else np.arange(len(scene.things))
        owner = np.where(owner < 0, -2, owner)
        words, bins = things_arrays(scene)
        for item in queries:
            prompt, first = prompt_ids(item, len(owner))
            ids = [*prompt, *item.answer[:-1]]
            if len(ids) > length:
                raise ValueError(f"a sequence of {len(ids)} tokens does not fit {length}")
            tokens, visual = np.zeros(length, np.int32), np.full(length, -1, np.int32)
            tokens[: len(ids)] = ids
            visual[first : first + len(owner)] = owner
            row = {"tokens": tokens, "visual": visual, "valid": np.arange(length) < len(ids)}
            rows.append(row | {"words": words, "bins": bins} | answer_rows(len(prompt), item))
    return {name: np.stack([r[name] for r in rows]) for name in rows[0]}
