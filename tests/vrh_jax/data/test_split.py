"""Which samples a study draws: on many images, never on one image for both purposes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from model_ports.errors import UserError
from vrh_jax.config import StudyConfig
from vrh_jax.data.source import Key
from vrh_jax.data.split import on_few_enough_images, spread, study_samples, turns
from vrh_jax.strict import parse_settings

KEYS = st.lists(st.integers(0, 8), min_size=1, max_size=60).map(
    lambda images: [Key(f"i{image}", f"s{n:03d}", "grounding", True)
                    for n, image in enumerate(images)]
)  # fmt: skip


@given(found=KEYS, seed=st.integers(0, 9))
def test_every_image_comes_before_any_image_comes_again(found, seed):
    order = spread(found, seed)
    assert sorted(order) == list(range(len(found)))
    seen = {}
    turn = []
    for i in order:
        turn.append(seen.setdefault(found[i].image_id, 0))
        seen[found[i].image_id] += 1
    assert turn == sorted(turn)


@given(found=KEYS, seed=st.integers(0, 9), data=st.data())
def test_the_draw_does_not_depend_on_the_order_of_the_file(found, seed, data):
    moved = data.draw(st.permutations(found))
    assert [found[i] for i in spread(found, seed)] == [moved[i] for i in spread(moved, seed)]
    assert dict(zip(found, turns(found, seed), strict=True)) == dict(
        zip(moved, turns(moved, seed), strict=True)
    )


@given(found=KEYS, seed=st.integers(0, 9), count=st.integers(1, 20), limit=st.integers(0, 8))
def test_as_many_images_as_fit(found, seed, count, limit):
    chosen = on_few_enough_images(found, seed, count, lambda taken: len(taken) <= limit)
    assert len(set(chosen)) == len(chosen) <= count
    images = {found[i].image_id for i in chosen}
    free = on_few_enough_images(found, seed, count, lambda taken: True)
    few = on_few_enough_images(found, seed, count, lambda taken: False)
    assert len(few) == min(count, len(found))
    if len({k.image_id for k in found}) >= count:
        assert len({found[i].image_id for i in free}) == count
    if len(images) > limit:  # nothing fits: the fewest images, in the drawn order
        assert chosen == few


def config(folder, detection, evaluation, seed=0):
    lines = [
        {"image": f"{image}.png", "text": f"thing {n}", "box": [n, 1, n + 9, 20]}
        for image in range(12) for n in range(4)
    ]  # fmt: skip
    (folder / "own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for image in range(12):
        if not (folder / f"{image}.png").exists():
            Image.new("RGB", (40, 30)).save(folder / f"{image}.png")
    raw = {
        "name": "s",
        "models": [{"name": "m", "source": "x"}],
        "benchmarks": {"b": {"task": "jsonl", "options": {"path": str(folder / "own.jsonl")}}},
        "detection": {"benchmark": "b", "samples": detection},
        "evaluation": [{"benchmark": "b", "samples": evaluation}],
        "split_seed": seed,
    }
    return parse_settings(StudyConfig, raw, "study.yaml")


@pytest.mark.parametrize(
    ("detection", "evaluation", "images"),
    [(6, 6, (6, 6)), (6, 24, (6, 6)), (6, 25, (3, 9)), (6, 40, (2, 10)), (12, 36, (3, 9)),
     (40, 8, (10, 2))],
)  # fmt: skip
@pytest.mark.parametrize("seed", range(3))
def test_images_are_shared_out(tmp_path, detection, evaluation, images, seed):
    first, second = study_samples(config(tmp_path, detection, evaluation, seed))
    assert (len(first), len(second["b"])) == (detection, evaluation)
    used = [{s.image_id for s in samples} for samples in (first, second["b"])]
    assert tuple(map(len, used)) == images
    assert not used[0] & used[1]
    assert [s.id for s in study_samples(config(tmp_path, detection, evaluation, seed))[0]] == [
        s.id for s in first
    ]  # fmt: skip


def test_too_few_samples_are_named(tmp_path):
    with pytest.raises(UserError, match="'b' has 40 samples for evaluation, but 41"):
        study_samples(config(tmp_path, 8, 41))
    with pytest.raises(UserError, match="'b' has 48 samples for detection, but 49"):
        study_samples(config(tmp_path, 49, 1))
