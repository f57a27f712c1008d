"""Referring expressions and questions about an organism scene; every one has one answer."""

import dataclasses

import numpy as np

from vrh_jax.data.organism_scenes import COLORS, SHAPES, SIZES, Scene, Thing

MARGIN = 4.0  # pixels between centres for a spatial word to apply
RELATIONS = ("left of", "right of", "above", "below")
PLACES = ("leftmost", "rightmost", "topmost", "bottommost")
QUESTIONS = ("color", "shape", "size", "spatial", "count", "exist")
PLURALS = {"circle": "circles", "square": "squares", "triangle": "triangles", "cross": "crosses"}
_FIELDS = ("size", "color", "shape")
_NAMES = {"size": SIZES, "color": COLORS, "shape": SHAPES}
# Axis and sign of the step from the reference to the target, for RELATIONS and PLACES.
_STEP = ((0, -1), (0, 1), (1, -1), (1, 1))


@dataclasses.dataclass(frozen=True)
class Query:
    """What is asked.

    Attributes:
        kind: ``box`` or one of QUESTIONS.
        text: referring expression (box) or question.
        answer: expected word ("" for box).
        target: index of the object that the answer depends on, or -1 if there is no single one.
    """

    kind: str
    text: str
    answer: str
    target: int


def _matches(scene: Scene, **wanted: int) -> list[int]:
    return [
        i for i, t in enumerate(scene.things) if all(getattr(t, f) == v for f, v in wanted.items())
    ]


def _phrase(thing: Thing, fields: tuple[str, ...]) -> str:
    words = [_NAMES[f][getattr(thing, f)] for f in _FIELDS if f in fields]
    if "shape" not in fields:
        words.append("object")
    return " ".join(words)


_SUBSETS = (
    ("shape",),
    ("color",),
    ("size",),
    ("color", "shape"),
    ("size", "shape"),
    ("size", "color"),
    ("size", "color", "shape"),
)


def by_attributes(
    scene: Scene, target: int, rng: np.random.Generator, avoid: str = ""
) -> str | None:
    """As in "the small red circle": a random subset of attributes that only the target has."""
    thing = scene.things[target]
    options = [
        s
        for s in _SUBSETS
        if avoid not in s and len(_matches(scene, **{f: getattr(thing, f) for f in s})) == 1
    ]
    if not options:
        return None
    return "the " + _phrase(thing, options[int(rng.integers(len(options)))])


def by_place(scene: Scene, target: int, rng: np.random.Generator, avoid: str = "") -> str | None:
    """As in "the leftmost circle": extreme among at least two objects of a class, by a margin."""
    thing = scene.things[target]
    classes = [s for s in ((), ("shape",), ("color",), ("size",)) if avoid not in s]
    options = []
    for fields in classes:
        others = _matches(scene, **{f: getattr(thing, f) for f in fields})
        others.remove(target)
        for place, (axis, sign) in zip(PLACES, _STEP, strict=True):
            here = sign * thing.center[axis]
            if others and all(here - sign * scene.things[o].center[axis] >= MARGIN for o in others):
                options.append((place, fields))
    if not options:
        return None
    place, chosen = options[int(rng.integers(len(options)))]
    return f"the {place} " + _phrase(thing, chosen)


def by_relation(scene: Scene, target: int, rng: np.random.Generator, avoid: str = "") -> str | None:
    """As in "the circle left of the red square": the class alone would be ambiguous."""
    thing = scene.things[target]
    options = []
    for fields in (("shape",), ("color",), ("size",), ()):
        if avoid in fields:
            continue
        group = _matches(scene, **{f: getattr(thing, f) for f in fields})
        if len(group) < 2:
            continue
        for ref, other in enumerate(scene.things):
            if ref == target or len(_matches(scene, color=other.color, shape=other.shape)) > 1:
                continue
            for word, (axis, sign) in zip(RELATIONS, _STEP, strict=True):
                gaps = [
                    sign * (scene.things[g].center[axis] - other.center[axis])
                    for g in group
                    if g not in (target, ref)
                ]
                own = sign * (thing.center[axis] - other.center[axis])
                if gaps and own >= MARGIN and all(g <= 0 for g in gaps):
                    options.append((fields, word, other))
    if not options:
        return None
    chosen, word, other = options[int(rng.integers(len(options)))]
    return f"the {_phrase(thing, chosen)} {word} the {_phrase(other, ('color', 'shape'))}"


def referring(
    scene: Scene, target: int, rng: np.random.Generator, *, simple: bool = False, avoid: str = ""
) -> str | None:
    """A random unique expression for the target, or None; ``simple`` uses attributes only."""
    ways = [by_attributes] if simple else [by_attributes, by_place, by_relation]
    for i in rng.permutation(len(ways)):
        text = ways[i](scene, target, rng, avoid)
        if text is not None:
            return text
    return None


def box_query(scene: Scene, rng: np.random.Generator, *, simple: bool = False) -> Query:
    """A referring expression for a random object."""
    while True:
        target = int(rng.integers(len(scene.things)))
        text = referring(scene, target, rng, simple=simple)
        if text is not None:
            return Query("box", text, "", target)


def _attribute(scene: Scene, kind: str, rng: np.random.Generator, simple: bool) -> Query | None:
    target = int(rng.integers(len(scene.things)))
    text = referring(scene, target, rng, simple=simple, avoid=kind)
    if text is None:
        return None
    answer = _NAMES[kind][getattr(scene.things[target], kind)]
    return Query(kind, f"What {kind} is {text}?", answer, target)


def _spatial(scene: Scene, rng: np.random.Generator) -> Query | None:
    a, b = (int(i) for i in rng.permutation(len(scene.things))[:2])
    axis, sign = _STEP[which := int(rng.integers(4))]
    gap = sign * (scene.things[a].center[axis] - scene.things[b].center[axis])
    first, second = by_attributes(scene, a, rng), by_attributes(scene, b, rng)
    if abs(gap) < MARGIN or first is None or second is None:
        return None
    answer = "yes" if gap > 0 else "no"
    return Query("spatial", f"Is {first} {RELATIONS[which]} {second}?", answer, a)


def _count(scene: Scene, rng: np.random.Generator) -> Query | None:
    field = _FIELDS[int(rng.integers(3))]
    # Mostly classes that occur, so that zero is not the safe guess.
    source = scene.things[int(rng.integers(len(scene.things)))]
    value = getattr(source, field)
    if rng.random() < 0.15:
        value = int(rng.integers(len(_NAMES[field])))
    word = _NAMES[field][value]
    noun = PLURALS[word] if field == "shape" else f"{word} objects"
    found = _matches(scene, **{field: value})
    target = found[0] if len(found) == 1 else -1
    return Query("count", f"How many {noun} are there?", str(len(found)), target)


def _exist(scene: Scene, rng: np.random.Generator) -> Query | None:
    a, b = (scene.things[int(i)] for i in rng.permutation(len(scene.things))[:2])
    present = rng.random() < 0.5
    if present:
        b = a
    found = _matches(scene, color=a.color, shape=b.shape)
    if found and not present:
        return None
    text = f"Is there a {COLORS[a.color]} {SHAPES[b.shape]}?"
    target = found[0] if len(found) == 1 else -1
    return Query("exist", text, "yes" if found else "no", target)


def question(
    scene: Scene, kind: str, rng: np.random.Generator, *, simple: bool = False
) -> Query | None:
    """A question of one of the kinds in QUESTIONS, or None if the scene allows none just now."""
    if kind in _NAMES:
        return _attribute(scene, kind, rng, simple)
    return {"spatial": _spatial, "count": _count, "exist": _exist}[kind](scene, rng)
