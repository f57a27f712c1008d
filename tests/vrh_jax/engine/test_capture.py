"""Scores against a model whose source of every token is known, and against full attention."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.copy_model import COPY, HEADS, LAYERS, VOCAB, copy_model

from model_ports.nn.attention import Tap
from model_ports.prompt import collate
from vrh_jax.config import BatchSettings, ScoringSettings
from vrh_jax.data.prompts import TaskPrompt
from vrh_jax.data.sample import Sample
from vrh_jax.engine.batching import Task, prepare
from vrh_jax.engine.session import Session
from vrh_jax.heads.scoring import SCORES

PROMPT = TaskPrompt("{text}", image_first=True, max_new=6)


def sample(text: str, needle: str, name: str = "s") -> Sample:
    return Sample(
        id=name, kind="needle", text=text, image=None, image_size=(0, 0), box=None,
        answer="", image_id=name, group=name, needle=needle,
    )  # fmt: skip


def run(session, samples, **scoring):
    """(answers, scores, rows counted) as the study computes them."""
    ready = [prepare(session.model.processor, Task(s, PROMPT)) for s in samples]
    embedded = session.embed([r.prompt for r in ready])
    answers = session.answer(embedded, len(ready), PROMPT.max_new)
    return answers, *session.scores(ready, answers, ScoringSettings(**scoring))


@pytest.fixture(scope="module")
def session():
    return Session(copy_model(), BatchSettings(generate=2, score=2, bucket=32))


TEXT = "end b1 c2 a1 a2 d0 e1 a0"


def test_the_row_that_predicts_a_token_looks_at_its_source(session):
    answers, scores, rows = run(session, [sample(TEXT, "a1 a2")])
    assert answers[0].text == "a1 a2"
    assert rows.tolist() == [2]
    assert scores["region_sum"].shape == (1, LAYERS, HEADS)
    for name in ("region_sum", "hit", "retrieval", "region_share"):
        assert scores[name][0][COPY] == pytest.approx(1, abs=1e-4), name
    assert scores["region_mean"][0][COPY] == pytest.approx(0.5, abs=1e-4)
    # All other heads attend evenly: 2 of 8, then 2 of 9 visible keys, of which 8 are prompt.
    np.testing.assert_allclose(scores["region_sum"][0][1, 0], (2 / 8 + 2 / 9) / 2, rtol=1e-5)
    np.testing.assert_allclose(scores["visual_mass"][0][1, 0], (8 / 8 + 8 / 9) / 2, rtol=1e-5)


@pytest.mark.parametrize(
    ("needle", "pred", "own"),
    [("a1", 0.5, 0.0), ("a2", 0.5, 0.5), ("end", 0.0, 0.5), ("a1 a2", 1.0, 0.5)],
)
def test_pred_and_own_are_one_row_apart(session, needle, pred, own):
    # Answer a1 a2; the row of a0 reads a1, the row of a1 reads a2, the row of a2 reads end.
    for rows, expected in (("pred", pred), ("own", own)):
        _, scores, _ = run(session, [sample(TEXT, needle)], rows=rows)
        assert scores["region_sum"][0][COPY] == pytest.approx(expected, abs=1e-4)
        assert scores["hit"][0][COPY] == expected


def test_retrieval_needs_the_generated_token(session):
    _, scores, _ = run(session, [sample(TEXT, "a1 a2")], rows="own")
    # The row of a1 looks at a2 in the needle, but the token that belongs to it is a1.
    assert scores["hit"][0][COPY] == 0.5
    assert scores["retrieval"][0][COPY] == 0.0


def test_first_token_only(session):
    _, scores, rows = run(session, [sample(TEXT, "a1")], tokens="first")
    assert rows.tolist() == [1]
    assert scores["region_sum"][0][COPY] == pytest.approx(1, abs=1e-4)


def test_an_empty_answer_has_no_rows(session):
    # a2 is followed by the end token at once.
    answers, scores, rows = run(session, [sample("end b1 a1 a2", "a1"), sample(TEXT, "a1")])
    assert answers[0].tokens == ()
    assert rows.tolist() == [0, 2]
    assert not scores["region_sum"][0].any()
    assert scores["region_sum"][1][COPY] > 0.4


def texts(rng: np.random.Generator, count: int) -> list[Sample]:
    words = VOCAB[2:]
    out = []
    for i in range(count):
        chosen = [str(w) for w in rng.choice(words, int(rng.integers(4, 17)), replace=False)]
        needle = chosen[int(rng.integers(len(chosen)))]
        out.append(sample(" ".join(["end", *chosen]), needle, f"s{i}"))
    return out


@pytest.fixture(scope="module")
def random_session():
    """The copying model's shape with random weights."""
    model = copy_model()
    params = nnx.to_pure_dict(nnx.state(nnx.merge(model.graphdef, model.params)))
    rng = np.random.default_rng(5)

    def noise(tree):
        if isinstance(tree, dict):
            return {k: noise(v) for k, v in tree.items()}
        return jnp.asarray(rng.normal(0, 0.3, tree.shape) + (tree.ndim < 3), jnp.float32)

    model.params.update(noise(params))
    return Session(model, BatchSettings(generate=4, score=4, bucket=32))


def test_a_batch_equals_single_samples(random_session):
    samples = texts(np.random.default_rng(1), 4)
    answers, scores, rows = run(random_session, samples)
    single = Session(random_session.model, BatchSettings(generate=1, score=1, bucket=24))
    for i, one in enumerate(samples):
        alone, values, counted = run(single, [one])
        assert alone[0] == answers[i]
        assert counted[0] == rows[i]
        for name in SCORES:
            np.testing.assert_allclose(values[name][0], scores[name][i], atol=2e-6)


def test_scores_equal_full_attention_rows(random_session):
    """Every score from whole attention rows, in float64 numpy."""
    model = random_session.model
    samples = texts(np.random.default_rng(2), 3)
    answers, scores, rows = run(random_session, samples)
    for i, one in enumerate(samples):
        prompt = model.processor.prepare(one.text)
        full = prompt.extend(answers[i].tokens)
        batch = collate([full], multiple=1)
        tap = Tap(rows=jnp.arange(len(full))[None], sets=jnp.ones((1, 1, len(full))), weights=True)
        vlm = nnx.merge(model.graphdef, model.params)
        _, _, tapped = vlm.decoder(vlm.embed(batch), tap=tap)
        attention = np.asarray(tapped.weights, np.float64)[:, 0]  # [L, N, T, T]
        start, m = len(prompt), len(answers[i].tokens)
        assert rows[i] == m
        assert m > 0
        used = attention[:, :, start - 1 : start - 1 + m]
        key = np.array([w == one.needle for w in one.text.split()])
        padded = np.concatenate([key, np.zeros(m, bool)])
        best = used.argmax(-1)
        expected = {
            "region_sum": used[..., padded].sum(-1).mean(-1),
            "region_mean": used[..., padded].sum(-1).mean(-1) / key.sum(),
            "visual_mass": used[..., :start].sum(-1).mean(-1),
            "hit": padded[best].mean(-1),
            "retrieval": (padded[best] & (full.tokens[best] == answers[i].tokens)).mean(-1),
            "region_share": (used[..., padded].sum(-1) / used[..., :start].sum(-1)).mean(-1),
        }
        assert set(expected) == set(SCORES)
        for name, value in expected.items():
            np.testing.assert_allclose(scores[name][i], value, atol=2e-6, err_msg=name)


def test_argmax_may_be_among_the_prompt_only(random_session):
    samples = texts(np.random.default_rng(3), 4)
    _, free, _ = run(random_session, samples)
    _, restricted, _ = run(random_session, samples, argmax_keys="visual")
    assert (restricted["hit"] >= free["hit"]).all()
    assert (restricted["hit"] > free["hit"]).any()
    np.testing.assert_array_equal(free["region_sum"], restricted["region_sum"])
