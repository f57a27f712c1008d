"""Scenes, expressions and questions, checked against an independent reading of the text."""

import numpy as np
import pytest

from model_ports.errors import UserError
from vrh_jax.data.organism import organism_samples
from vrh_jax.data.organism_language import QUESTIONS, box_query, question
from vrh_jax.data.organism_scenes import COLORS, SHAPES, SIDE, SIZES, Scene, Thing, draw_scene

PLURAL = {"circles": "circle", "squares": "square", "triangles": "triangle", "crosses": "cross"}


def words_of(thing: Thing) -> set[str]:
    return {SIZES[thing.size], COLORS[thing.color], SHAPES[thing.shape], "object"}


def centre(thing: Thing) -> tuple[float, float]:
    return (thing.box[0] + thing.box[2]) / 2, (thing.box[1] + thing.box[3]) / 2


def holds(relation: str, a: Thing, b: Thing) -> bool:
    (ax, ay), (bx, by) = centre(a), centre(b)
    return {"left of": ax < bx, "right of": ax > bx, "above": ay < by, "below": ay > by}[relation]


def resolve(scene: Scene, phrase: str) -> list[Thing]:
    """Objects that a phrase may mean, read word by word."""
    for relation in ("left of", "right of", "above", "below"):
        if f" {relation} " in phrase:
            head, tail = phrase.split(f" {relation} ")
            (other,) = resolve(scene, tail)
            return [t for t in resolve(scene, head) if t is not other and holds(relation, t, other)]
    words = phrase.removeprefix("the ").split()
    place = next((w for w in words if w.endswith("most")), None)
    found = [t for t in scene.things if {w for w in words if w != place} <= words_of(t)]
    if place is None:
        return found
    axis = 0 if place in ("leftmost", "rightmost") else 1
    sign = 1 if place in ("leftmost", "topmost") else -1
    best = min(sign * centre(t)[axis] for t in found)
    return [t for t in found if sign * centre(t)[axis] == best]


@pytest.mark.parametrize("index", range(40))
def test_expressions_name_exactly_their_target(index: int) -> None:
    scene = draw_scene(5, "evaluation", index)
    rng = np.random.default_rng(index)
    for _ in range(10):
        query = box_query(scene, rng)
        assert resolve(scene, query.text) == [scene.things[query.target]], query.text


@pytest.mark.parametrize("index", range(40))
def test_questions_have_the_answer_that_the_scene_gives(index: int) -> None:
    scene = draw_scene(6, "detection", index)
    rng = np.random.default_rng(index)
    for kind in QUESTIONS:
        query = question(scene, kind, rng)
        if query is None:
            continue
        text = query.text.removesuffix("?")
        if kind in ("color", "shape", "size"):
            (thing,) = resolve(scene, text.removeprefix(f"What {kind} is "))
            names = {"color": COLORS, "shape": SHAPES, "size": SIZES}[kind]
            expected = names[getattr(thing, kind)]
            own = text.partition(" of ")[0].partition(" above ")[0].partition(" below ")[0]
            assert expected not in own.split(), text
        elif kind == "spatial":
            body = text.removeprefix("Is ")
            relation = next(r for r in ("left of", "right of", "above", "below") if r in body)
            first, second = body.split(f" {relation} ")
            (a,), (b,) = resolve(scene, first), resolve(scene, second)
            expected = "yes" if holds(relation, a, b) else "no"
        elif kind == "count":
            noun = text.removeprefix("How many ").removesuffix(" are there")
            words = {PLURAL.get(w, w) for w in noun.replace("objects", "").split()}
            expected = str(sum(words <= words_of(t) for t in scene.things))
        else:
            words = set(text.removeprefix("Is there a ").split())
            expected = "yes" if any(words <= words_of(t) for t in scene.things) else "no"
        assert query.answer == expected, query.text


def test_splits_and_seeds_share_no_scene() -> None:
    drawn = [
        draw_scene(seed, split, i).things
        for seed in (0, 1)
        for split in ("train", "detection", "evaluation")
        for i in range(40)
    ]
    assert len(set(drawn)) == len(drawn)


def test_objects_are_apart_inside_and_own_a_cell() -> None:
    for index in range(50):
        scene = draw_scene(3, "train", index)
        assert 3 <= len(scene.things) <= 6
        assert set(range(len(scene.things))) <= set(scene.cells().tolist())
        covered = np.zeros((SIDE, SIDE), int)
        for thing in scene.things:
            x0, y0, x1, y1 = thing.box
            assert 0 <= x0 < x1 <= SIDE and 0 <= y0 < y1 <= SIDE
            covered[y0:y1, x0:x1] += 1
        assert covered.max() == 1


def test_samples_repeat_exactly_and_images_show_the_box() -> None:
    first = organism_samples("grounding", "evaluation", 12, seed=4)
    again = organism_samples("grounding", "evaluation", 12, seed=4)
    longer = organism_samples("grounding", "evaluation", 20, seed=4)
    assert [(s.id, s.text, s.box) for s in first] == [(s.id, s.text, s.box) for s in again]
    assert [(s.id, s.text, s.box) for s in first] == [(s.id, s.text, s.box) for s in longer[:12]]
    for sample in first:
        assert sample.image is not None and sample.box is not None
        image = np.asarray(sample.image(), float)
        np.testing.assert_array_equal(image, np.asarray(sample.image(), float))
        assert image.shape == (SIDE, SIDE, 3)
        x0, y0, x1, y1 = (int(v) for v in sample.box)
        middle = image[
            (y0 + y1) // 2 - 1 : (y0 + y1) // 2 + 1, (x0 + x1) // 2 - 1 : (x0 + x1) // 2 + 1
        ]
        # A shape is a saturated colour; the background is close to grey.
        assert np.ptp(middle.mean((0, 1))) > 60


def test_questions_come_in_turn() -> None:
    samples = organism_samples("questions", "detection", 60)
    assert len({s.id for s in samples}) == 60
    counts = sum(s.text.startswith("How many") for s in samples)
    assert 5 <= counts <= 15


@pytest.mark.parametrize(("task", "split"), [("boxes", "detection"), ("grounding", "test")])
def test_unknown_names_are_refused(task: str, split: str) -> None:
    with pytest.raises(UserError, match=r"unknown.*(grounding|detection)"):
        organism_samples(task, split, 3)
