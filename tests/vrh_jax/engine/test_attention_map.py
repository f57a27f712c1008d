"""The gallery's attention map against the reference's eager attention."""

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
from vrh_jax.engine.attention_map import attention_map
from vrh_jax.engine.batching import Task, prepare
from vrh_jax.engine.session import Session

HEADS = [(0, 1), (1, 0), (1, 3)]
BOX = (10, 5, 60, 40)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return Pair.make(tmp_path_factory.mktemp("qwen"), seed=5)


@pytest.fixture(scope="module")
def session(pair):
    model = Model("tiny", PORT, pair.config, pair.graphdef, pair.params, pair.processor, "f")
    return Session(model, BatchSettings(generate=2, score=2, bucket=16))


def make_task(image):
    prompt = task_prompt(ModelSettings(name="tiny", source="x"), PORT.family, "grounding")
    sample = Sample(
        id="s", kind="grounding", text="the red square", image=image.copy, image_size=(112, 84),
        box=BOX, answer="", image_id="i", group="i",
    )  # fmt: skip
    return Task(sample, dataclasses.replace(prompt, max_new=5))


def test_map_is_the_mean_of_rows_and_heads(pair, session):
    image = textured_image(112, 84, seed=3)
    task = make_task(image)
    rects, weights = attention_map(session, task, HEADS, ScoringSettings())
    ready = prepare(session.model.processor, task)
    (answer,) = session.answer(session.embed([ready.prompt]), 1, 5)
    assert answer.tokens
    attention = pair.attentions(ready.prompt.extend(answer.tokens), [image])
    start = len(ready.prompt) - 1
    rows = attention[:, :, start : start + len(answer.tokens)]
    expected = np.mean([rows[layer, head].mean(axis=0) for layer, head in HEADS], axis=0)
    np.testing.assert_allclose(weights, expected[ready.prompt.grid.slot], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(rects, ready.prompt.grid.rect)
    # Over the box it is the score by which these heads are ranked.
    scores, _ = session.scores([ready], [answer], ScoringSettings())
    inside = ready.prompt.grid.cover(BOX) > 0
    mean = np.mean([scores["region_sum"][0][head] for head in HEADS])
    assert weights[inside].sum() == pytest.approx(mean, rel=1e-4)


def test_no_map_of_an_unreadable_image(session):
    def broken():
        raise OSError("cut short")

    task = make_task(textured_image(112, 84, seed=3))
    task = dataclasses.replace(task, sample=dataclasses.replace(task.sample, image=broken))
    assert attention_map(session, task, HEADS, ScoringSettings()) is None
