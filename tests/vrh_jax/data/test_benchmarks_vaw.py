"""VAW as multiple choice: the rule, and that every draw depends on the seed and the object only."""

import json
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from model_ports.errors import UserError
from vrh_jax.answers import judge
from vrh_jax.config import BenchmarkSettings
from vrh_jax.data.benchmarks.vaw import alike, rules
from vrh_jax.data.registry import load

WORDS = {name: entry["attributes"] for name, entry in rules()["types"].items()}


def entries(count, seed=0):
    """Annotations with random positives and negatives, as VAW has them."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(count):
        positive, negative = [], []
        for words in WORDS.values():
            drawn = [str(w) for w in rng.permutation(list(words))]
            positive += drawn[: rng.integers(0, 3)]
            negative += drawn[3 : 3 + rng.integers(0, 12)]
        out.append({
            "image_id": 100 + i // 3, "instance_id": str(7000 + i), "instance_polygon": None,
            "instance_bbox": [1.0, 2.0, 20.0, 10.0],
            "object_name": ["cat", "dog", "car", "cat"][int(rng.integers(4))],
            "positive_attributes": positive, "negative_attributes": negative,
        })  # fmt: skip
    return out


def write(folder, rows):
    (folder / "VG_100K_2").mkdir(exist_ok=True)
    for name in {row["image_id"] for row in rows}:
        Image.new("RGB", (40, 30)).save(folder / "VG_100K_2" / f"{name}.jpg")
    (folder / "test.json").write_text(json.dumps(rows))
    return folder


def read(folder, **options):
    raw = {"path": [str(folder / "test.json")], "images": str(folder), **options}
    return load("vaw", BenchmarkSettings(task="vaw", options=raw), "evaluation", 1)[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("vaw"), entries(150))


def brief(samples):
    return {s.id: (s.text, s.answer, s.choices) for s in samples}


@pytest.mark.parametrize("seed", range(3))
def test_options_are_explicit_negatives_and_no_synonyms(folder, seed):
    samples = read(folder, seed=seed, per_object=3)
    rows = {r["instance_id"]: r for r in json.loads((folder / "test.json").read_text())}
    assert len(samples) > 60
    for sample in samples:
        row, kind = rows[sample.id.partition("-")[0]], sample.category
        assert sample.answer in row["positive_attributes"]
        assert len(sample.choices) == len(set(sample.choices)) == 4
        assert set(sample.choices) <= set(WORDS[kind])
        wrong = set(sample.choices) - {sample.answer}
        assert wrong <= set(row["negative_attributes"])
        for option in wrong:
            assert not any(alike(option, other) for other in row["positive_attributes"])
            assert not any(alike(option, other) for other in wrong - {option})
        assert row["object_name"] in sample.text
        assert sample.box == (1, 2, 21, 12)
        assert sample.image().size == sample.image_size == (40, 30)
        assert judge(sample, sample.answer).correct
        assert not judge(sample, min(wrong)).correct
    assert len(Counter(s.category for s in samples)) >= 6
    # The right option is in no preferred place.
    places = Counter(s.choices.index(s.answer) for s in samples)
    assert min(places.values()) > len(samples) / 10


def test_an_object_named_twice_is_not_asked_about(folder):
    rows = json.loads((folder / "test.json").read_text())
    names = Counter((r["image_id"], r["object_name"]) for r in rows)
    asked = {s.id.partition("-")[0] for s in read(folder)}
    twice = {r["instance_id"] for r in rows if names[r["image_id"], r["object_name"]] > 1}
    assert twice
    assert not asked & twice


def test_draws_depend_on_the_seed_and_the_object_only(folder, tmp_path):
    whole = brief(read(folder, seed=5))
    assert brief(read(folder, seed=5)) == whole
    other = brief(read(folder, seed=6))
    assert sum(whole.get(i) != other[i] for i in other) > len(other) / 2
    rows = json.loads((folder / "test.json").read_text())
    rows = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    assert brief(read(write(tmp_path, rows), seed=5)) == whole
    images = sorted({r["image_id"] for r in rows})[:20]
    few = brief(read(write(tmp_path, [r for r in rows if r["image_id"] in images]), seed=5))
    assert few
    assert few.items() <= whole.items()


def test_one_type_and_other_numbers_of_options(folder):
    samples = read(folder, types=["color"], choices=3)
    assert {s.category for s in samples} == {"color"}
    assert all(s.text == s.text.replace("{object}", "") for s in samples)
    assert {len(s.choices) for s in samples} == {3}
    assert max(Counter(s.id.partition("-")[0] for s in samples).values()) == 1
    with pytest.raises(UserError, match="'colour' is unknown"):
        read(folder, types=["colour"])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("blue", "light blue", True),
        ("gray", "silver", True),
        ("silver", "gray", True),
        ("wooden", "dark wood", True),
        ("large", "tall", True),
        ("red", "blue", False),
        ("open", "closed", False),
        ("polo", "polka dotted", False),
    ],
)
def test_synonyms(one, other, same):
    assert alike(one, other) is same


def test_a_positive_that_is_denied_too_is_not_asked(tmp_path):
    (row,) = entries(1)
    row |= {
        "positive_attributes": ["red"],
        "negative_attributes": ["red", "blue", "green", "black"],
    }
    assert len(read(write(tmp_path, [row]))) == 0
    row["negative_attributes"].remove("red")
    assert read(write(tmp_path, [row]))[0].answer == "red"


def test_a_missing_field_is_named(tmp_path):
    rows = entries(2)
    del rows[1]["negative_attributes"]
    with pytest.raises(UserError, match=r"test\.json: entry 1 lacks 'negative_attributes'"):
        read(write(tmp_path, rows))
