"""Ranking, masks and controls."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_ports.errors import UserError
from vrh_jax.heads.controls import draw_controls
from vrh_jax.heads.masks import head_mask, mask_heads
from vrh_jax.heads.ranking import mean_scores, rank, top

shapes = st.tuples(st.integers(1, 6), st.integers(1, 9))


@st.composite
def sets(draw, most=1.0):
    layers, heads = draw(shapes)
    every = [(x, h) for x in range(layers) for h in range(heads)]
    limit = max(1, int(len(every) * most))
    chosen = draw(st.sets(st.sampled_from(every), min_size=1, max_size=limit))
    return layers, heads, frozenset(chosen)


@given(sets())
def test_mask_and_back(case):
    layers, heads, chosen = case
    mask = head_mask(chosen, layers, heads)
    assert mask.shape == (layers, heads)
    assert mask.dtype == np.float32
    assert mask_heads(mask) == chosen
    assert mask.sum() == layers * heads - len(chosen)


@pytest.mark.parametrize("head", [(2, 0), (0, 3), (-1, 0), (0, -1)])
def test_mask_refuses_heads_that_are_not_there(head):
    with pytest.raises(UserError, match="2 layers x 3 heads"):
        head_mask([head], 2, 3)


@given(sets(), st.integers(0, 3), st.integers(0, 2**31))
@settings(max_examples=60)
def test_layer_controls_match_layers_or_tell_the_shortfall(case, draws, seed):
    layers, heads, chosen = case
    control = draw_controls("random_layer", chosen, layers, heads, draws=draws, seed=seed, key="m")
    assert len(control.sets) == draws
    want = [sum(x == layer for x, _ in chosen) for layer in range(layers)]
    able = [min(n, heads - n) for n in want]
    assert control.shortfall == sum(want) - sum(able)
    for one in control.sets:
        assert not one & chosen
        assert [sum(x == layer for x, _ in one) for layer in range(layers)] == able


@given(sets(most=0.5), st.integers(0, 2**31))
@settings(max_examples=60)
def test_uniform_controls(case, seed):
    layers, heads, chosen = case
    if 2 * len(chosen) > layers * heads:
        with pytest.raises(UserError, match="as many others"):
            draw_controls("random", chosen, layers, heads, draws=1, seed=seed, key="m")
        return
    control = draw_controls("random", chosen, layers, heads, draws=4, seed=seed, key="m")
    assert all(len(s) == len(chosen) and not s & chosen for s in control.sets)
    assert control.pool == {"all": layers * heads - len(chosen)}
    again = draw_controls("random", chosen, layers, heads, draws=2, seed=seed, key="m")
    assert again.sets == control.sets[:2]  # more draws keep the first ones


def test_controls_depend_on_seed_key_and_draw():
    chosen = frozenset({(0, 0), (1, 5)})
    drawn = {
        s
        for seed in (0, 1)
        for key in ("a", "b")
        for s in draw_controls("random", chosen, 8, 16, draws=5, seed=seed, key=key).sets
    }
    assert len(drawn) == 20


def test_uniform_controls_reach_every_other_head():
    chosen = frozenset({(0, 0)})
    control = draw_controls("random", chosen, 3, 4, draws=200, seed=0, key="m")
    counts = {}
    for one in control.sets:
        for head in one:
            counts[head] = counts.get(head, 0) + 1
    assert len(counts) == 11
    assert max(counts.values()) < 3 * min(counts.values())


def test_ties_go_to_the_lower_layer_then_head():
    scores = np.array([[0.5, 0.9, 0.5], [0.9, 0.1, 0.5]])
    assert rank(scores) == [(0, 1), (1, 0), (0, 0), (0, 2), (1, 2), (1, 1)]
    assert top(rank(scores), 2) == {(0, 1), (1, 0)}
    with pytest.raises(UserError, match="7, but the model has 6"):
        top(rank(scores), 7)


def test_nan_scores_are_refused():
    scores = np.zeros((2, 2))
    scores[1, 0] = np.nan
    with pytest.raises(UserError, match=r"head \(1, 0\)"):
        rank(scores)


def test_mean_counts_only_what_counts():
    scores = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    mean = mean_scores(scores, np.array([True, False, True]))
    np.testing.assert_array_equal(mean, (scores[0].astype(float) + scores[2]) / 2)
    with pytest.raises(UserError, match="gate"):
        mean_scores(scores, np.zeros(3, bool))
