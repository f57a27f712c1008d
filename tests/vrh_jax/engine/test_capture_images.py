"""Image key sets: scores of a tiny Qwen2.5-VL against the reference's eager attention."""

import dataclasses

import numpy as np
import pytest
from support.parity import textured_image
from support.qwen25 import Pair

from model_ports.port import Model
from model_ports.vlms.qwen2_5_vl import PORT
from vrh_jax.config import BatchSettings, ModelSettings, ScoringSettings
from vrh_jax.data.prompts import task_prompt
from vrh_jax.data.sample import Sample
from vrh_jax.engine.batching import Task, prepare
from vrh_jax.engine.session import Session

SIZES = [(112, 84), (61, 140), (168, 56)]
BOXES = [(10, 5, 60, 40), (0, 100, 61, 140), (150, 3, 153, 6)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return Pair.make(tmp_path_factory.mktemp("qwen"), seed=4)


@pytest.fixture(scope="module")
def session(pair):
    model = Model(
        "tiny", PORT, pair.config, pair.graphdef, pair.params, pair.processor, "fingerprint"
    )
    return Session(model, BatchSettings(generate=4, score=4, bucket=16))


def tasks():
    prompt = task_prompt(ModelSettings(name="tiny", source="x"), PORT.family, "grounding")
    prompt = dataclasses.replace(prompt, max_new=5)
    out = []
    for i, (size, box) in enumerate(zip(SIZES, BOXES, strict=True)):
        image = textured_image(*size, seed=i)
        sample = Sample(
            id=f"s{i}", kind="grounding", text="the red square", image=image.copy,
            image_size=size, box=box, answer="", image_id=f"i{i}", group=f"i{i}",
        )  # fmt: skip
        out.append((Task(sample, prompt), image))
    return out


def answered(session):
    ready = [prepare(session.model.processor, task) for task, _ in tasks()]
    assert not any(r.error for r in ready)
    return ready, session.answer(session.embed([r.prompt for r in ready]), len(ready), 5)


def inside(prompt, box, rule):
    """Weights of the visual tokens, from the rectangles alone."""
    x0, y0, x1, y1 = box
    weights = []
    for left, top, right, bottom in prompt.grid.rect:
        w = max(0.0, min(right, x1) - max(left, x0))
        h = max(0.0, min(bottom, y1) - max(top, y0))
        share = w * h / ((right - left) * (bottom - top))
        weights.append(share if rule == "coverage" else float(share > 0))
    return np.array(weights)


@pytest.mark.parametrize("rule", ["any", "coverage"])
@pytest.mark.parametrize("rows", ["pred", "own"])
def test_scores_equal_eager_attention(pair, session, rule, rows):
    ready, answers = answered(session)
    settings = ScoringSettings(region=rule, rows=rows)
    scores, counted = session.scores(ready, answers, settings)
    assert any(len(a.tokens) > 1 for a in answers)
    for i, (task, image) in enumerate(tasks()):
        prompt, answer = ready[i].prompt, answers[i].tokens
        assert counted[i] == len(answer)
        full = prompt.extend(answer)
        attention = pair.attentions(full, [image])
        start = len(prompt) - (rows == "pred")
        used = attention[:, :, start : start + len(answer)]
        weights = inside(prompt, task.sample.box, rule)
        visual = used[..., prompt.grid.slot]
        region = visual @ weights
        expected = {
            "region_sum": region.mean(-1),
            "region_mean": region.mean(-1) / weights.sum(),
            "visual_mass": visual.sum(-1).mean(-1),
            "region_share": (region / visual.sum(-1)).mean(-1),
        }
        for name, value in expected.items():
            worst = np.abs(scores[name][i] - value).max() / np.abs(value).max()
            assert worst < 1e-4, (name, i, worst)


def test_a_box_between_cell_centres_keeps_one_token(session):
    ready, answers = answered(session)
    scores, _ = session.scores(ready, answers, ScoringSettings(region="center"))
    # The third box is three pixels wide and holds no centre of a cell.
    assert not ready[2].prompt.grid.cover(BOXES[2], rule="center").any()
    assert (scores["region_sum"][2] > 0).all()


def test_a_batch_of_sizes_equals_single_images(session):
    ready, answers = answered(session)
    single = Session(session.model, BatchSettings(generate=1, score=1, bucket=16))
    batch_scores, _ = session.scores(ready, answers, ScoringSettings())
    for i, one in enumerate(ready):
        assert single.answer(single.embed([one.prompt]), 1, 5) == [answers[i]]
        alone, _ = single.scores([one], [answers[i]], ScoringSettings())
        np.testing.assert_allclose(
            alone["region_sum"][0], batch_scores["region_sum"][i], rtol=1e-4, atol=1e-6
        )


def test_masks_of_all_ones_change_nothing_and_zeros_do(session):
    ready, answers = answered(session)
    embedded = session.embed([r.prompt for r in ready])
    decoder = session.model.decoder
    ones = np.ones((decoder.layers, decoder.heads), np.float32)
    assert session.answer(embedded, len(ready), 5, ones) == answers
    assert session.answer(embedded, len(ready), 5, np.zeros_like(ones)) != answers


def test_an_unreadable_image_is_a_result(session):
    def broken():
        raise OSError("truncated")

    task, _ = tasks()[0]
    sample = dataclasses.replace(task.sample, image=broken)
    ready = prepare(session.model.processor, Task(sample, task.prompt))
    assert ready.prompt is None
    assert "truncated" in ready.error
    other = dataclasses.replace(task.sample, image_size=(5, 5))
    assert "expected (5, 5)" in prepare(session.model.processor, Task(other, task.prompt)).error
