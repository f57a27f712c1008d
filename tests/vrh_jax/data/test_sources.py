"""Your own samples, splits by image, prompts, and bad data."""

import json

import pytest
from PIL import Image

from model_ports.errors import UserError
from vrh_jax.config import StudyConfig
from vrh_jax.data.jsonl import JsonlOptions, load
from vrh_jax.data.split import study_samples
from vrh_jax.strict import parse_settings


@pytest.fixture
def images(tmp_path):
    for i in range(6):
        Image.new("RGB", (40, 30), (i, 0, 0)).save(tmp_path / f"{i}.png")
    return tmp_path


def write(folder, lines):
    path = folder / "own.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read(path):
    return load(JsonlOptions(path=path), "detection", 1)


def test_grounding_and_questions(images):
    path = write(
        images,
        [
            {"image": "0.png", "text": "the {red} thing", "box": [1, 2, 30, 20]},
            {"image": "0.png", "text": "What colour?", "answer": "red", "id": "q"},
            {"image": "1.png", "text": "How many?", "answer": "3", "kind": "count"},
            {"image": "1.png", "text": "Which?", "answer": "b", "kind": "choice",
             "choices": ["a", "b"]},
        ],
    )  # fmt: skip
    samples = read(path)
    assert [s.kind for s in samples] == ["grounding", "text", "count", "choice"]
    assert [s.id for s in samples] == ["line-1", "q", "line-3", "line-4"]
    assert samples[0].image_size == (40, 30)
    assert samples[0].image().size == (40, 30)
    assert samples[0].image_id == samples[1].image_id != samples[2].image_id


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"image": "0.png", "text": "x", "bbox": [0, 0, 1, 1]}, "unknown key 'bbox'.*'box'"),
        ({"image": "0.png", "text": "x"}, "grounding sample needs 'box'"),
        ({"text": "x", "box": [0, 0, 1, 1]}, "grounding sample needs 'image'"),
        ({"image": "0.png", "text": "x", "box": [0, 0, 1]}, "four numbers"),
        ({"image": "0.png", "text": "x", "box": [0, 0, 1, "2"]}, "four numbers"),
        ({"image": "0.png", "box": [0, 0, 1, 1]}, "'text'"),
        ({"image": "0.png", "text": "x", "kind": "ground", "box": [0, 0, 1, 1]}, "'ground'"),
        ({"text": "a b", "kind": "needle", "needle": "c", "answer": "c"}, "exactly once"),
        ({"text": "a b", "kind": "needle", "needle": 5, "answer": "c"}, "exactly once"),
        ({"text": "a", "kind": "choice", "choices": "ab", "answer": "a"}, "list of texts"),
        ({"text": "a", "kind": "choice", "choices": ["x", "y"], "answer": "z"}, "one of the choi"),
        ({"text": "a", "kind": "choice", "answer": "red"}, "or its letter"),
        ({"text": "a", "kind": "count", "answer": "many"}, "expected a number"),
        ([1], "JSON object"),
    ],
)
def test_bad_lines_are_named(images, line, expected):
    good = {"image": "0.png", "text": "x", "box": [0, 0, 1, 1]}
    with pytest.raises(UserError, match=rf"own.jsonl, line 2: .*{expected}"):
        read(write(images, [good, line]))


def test_broken_json_is_named(images):
    path = images / "own.jsonl"
    path.write_text('{"image": "0.png"\n')
    with pytest.raises(UserError, match="line 1: not JSON"):
        read(path)


def study(path, **changes):
    raw = {
        "name": "s",
        "models": [{"name": "m", "source": "x"}],
        "benchmarks": {"b": {"task": "jsonl", "options": {"path": str(path)}}},
        "detection": {"benchmark": "b", "samples": 4},
        "evaluation": [{"benchmark": "b", "samples": 6}],
        **changes,
    }
    return parse_settings(StudyConfig, raw, "study.yaml")


def many(count=12, **extra):
    return [
        {"image": f"{i // 2}.png", "text": f"thing {i}", "box": [i, 1, i + 9, 20], **extra}
        for i in range(count)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_no_image_is_in_both_splits(images, seed):
    config = study(write(images, many()), split_seed=seed)
    detection, evaluation = study_samples(config)
    assert len(detection) == 4
    assert len(evaluation["b"]) == 6
    used = {s.image_id for s in detection}
    assert not used & {s.image_id for s in evaluation["b"]}
    again, _ = study_samples(config)
    assert [s.id for s in again] == [s.id for s in detection]


def test_splits_differ_by_seed(images):
    path = write(images, many())
    found = {tuple(s.id for s in study_samples(study(path, split_seed=i))[0]) for i in range(8)}
    assert len(found) > 3


@pytest.mark.parametrize("box", [[5, 5, 41, 20], [-1, 0, 5, 5], [5, 5, 5, 9], [9, 5, 5, 9]])
def test_boxes_must_lie_in_their_image(images, box):
    lines = many()
    lines[3]["box"] = box
    with pytest.raises(UserError, match="sample 'line-4': box") as error:
        study_samples(study(write(images, lines)))
    assert "x0, y0, x1, y1" in str(error.value)


def test_unreadable_images_pass_the_checks(images):
    (images / "2.png").write_bytes(b"no image")
    _, evaluation = study_samples(study(write(images, many())))
    assert len(evaluation["b"]) == 6


def test_unknown_tasks_and_options(images):
    config = study("x", benchmarks={"b": {"task": "jsnl"}})
    with pytest.raises(UserError, match="did you mean 'jsonl'"):
        study_samples(config)
    bad = {"b": {"task": "jsonl", "options": {"pth": "x"}}}
    with pytest.raises(UserError, match="unknown key 'pth'; did you mean 'path'"):
        study_samples(study("x", benchmarks=bad))
