"""The decoder against a plain float64 decoder, and its masks and taps against each other."""

import dataclasses
import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.decoders import SMALL, Given, close, inputs, random_decoder
from support.plain_decoder import plain

import model_ports.nn.attention as attention_module
from model_ports.block import DecoderConfig
from model_ports.catalogue import PUBLISHED, published_config
from model_ports.decoder import Decoder, Inputs
from model_ports.errors import UserError
from model_ports.nn.attention import Tap
from model_ports.nn.mla import Latent
from model_ports.nn.moe import Experts
from model_ports.nn.rope import Rope
from model_ports.registry import port_for

CONFIGS = {
    "grouped": SMALL,
    "multi-query": dataclasses.replace(SMALL, kv_heads=1, qkv_bias=False),
    "every head its own": dataclasses.replace(SMALL, kv_heads=6, heads=6),
    "m-rope": dataclasses.replace(SMALL, rope=Rope(theta=500.0, sections=(2, 1, 1))),
    "interleaved m-rope, normed queries and keys": dataclasses.replace(
        SMALL,
        head_dim=16,
        qk_norm=True,
        rope=Rope(theta=500.0, sections=(4, 2, 2), interleaved=True),
    ),
    "part of the dims in adjacent pairs, four norms": dataclasses.replace(
        SMALL,
        head_dim=16,
        post_norms=True,
        rope=Rope(theta=500.0, sections=(1, 2, 1), pairs="adjacent", dim=8),
    ),
    "windows, soft caps, offset norms": dataclasses.replace(
        SMALL,
        qk_norm=True,
        post_norms=True,
        norm_offset=True,
        act="gelu_tanh",
        attn_scale=0.25,
        attn_softcap=1.5,
        windows=(4, 0, 3),
    ),
    "latent attention, experts after a dense layer": dataclasses.replace(
        SMALL,
        kv_heads=6,
        head_dim=12,
        qkv_bias=False,
        rope=Rope(theta=500.0, pairs="adjacent", dim=4),
        latent=Latent(rank=9, nope=8, rope=4, value=5),
        experts=Experts(count=7, active=2, hidden=10, shared=2, scale=1.5, first=1),
    ),
}
GEMMA = CONFIGS["windows, soft caps, offset norms"]


@partial(jax.jit, static_argnames=("graphdef", "static_heads", "block"))
def _run(
    graphdef: Any, state: Any, arrays: Any, options: Any, static_heads: Any, block: int
) -> Any:
    hidden, _, tapped = nnx.merge(graphdef, state)(arrays, static_heads=static_heads, **options)
    return hidden, tapped


def run(decoder: Decoder, given: Given, static_heads: Any = frozenset(), **options: Any) -> Any:
    """(hidden, tapped); compiled once per shape, options and size of a query block."""
    block = attention_module.QUERY_BLOCK
    return _run(*nnx.split(decoder), given.inputs(), options, static_heads, block)


@pytest.mark.parametrize("masked", [False, True], ids=["all heads", "masked"])
@pytest.mark.parametrize("name", CONFIGS)
def test_hidden_and_taps_equal_a_plain_float64_decoder(name: str, masked: bool) -> None:
    cfg = CONFIGS[name]
    decoder, given = random_decoder(cfg, seed=3), inputs(cfg, (9, 14, 5), 14, seed=4)
    rng = np.random.default_rng(5)
    mask = np.ones((3, cfg.layers, cfg.heads))
    if masked:
        mask = rng.integers(0, 2, mask.shape).astype(float)
    domain = np.asarray(given.valid) & (rng.random(given.valid.shape) < 0.7)
    domain[:, 0] = True
    tap = dataclasses.replace(given.tap, domain=jnp.asarray(domain), weights=True)
    hidden, tapped = run(decoder, given, head_mask=jnp.asarray(mask, jnp.float32), tap=tap)
    expected, maps = plain(decoder, given, mask)
    valid = np.asarray(given.valid)
    close(np.asarray(hidden)[valid], expected[valid], 1e-5)

    rows, sets = np.asarray(tap.rows), np.asarray(tap.sets, np.float64)
    picked = np.stack([maps[:, i][:, :, rows[i]] for i in range(3)], 1)  # [L, B, N, Q, S]
    close(tapped.weights, picked, 1e-5)
    close(tapped.mass, np.einsum("lbnqs,brs->lbnqr", picked, sets), 1e-5)
    top = np.where(domain[:, None, None], picked, -1).argmax(-1)
    assert np.array_equal(tapped.top, top)
    hit = np.stack([sets[i][:, top[:, i]] > 0 for i in range(3)])  # [B, R, L, N, Q]
    assert np.array_equal(tapped.hit, hit.transpose(2, 0, 3, 4, 1))


@pytest.mark.parametrize("count", [1, 2])
def test_deepstack_is_added_after_the_first_layers(count: int) -> None:
    decoder, given = random_decoder(SMALL, 3), inputs(SMALL, (9, 12), 12, seed=4)
    features = np.random.default_rng(6).normal(0, 1, (count, *given.x.shape))
    given = dataclasses.replace(given, deepstack=jnp.asarray(features, jnp.float32))
    ones, valid = np.ones((2, SMALL.layers, SMALL.heads)), np.asarray(given.valid)
    expected, _ = plain(decoder, given, ones)
    hidden, _ = run(decoder, given)
    close(np.asarray(hidden)[valid], expected[valid], 1e-5)
    drop = frozenset((0, head) for head in range(SMALL.heads)) | {(1, 2)}
    static, _ = run(decoder, given, static_heads=drop)
    for layer, head in drop:
        ones[:, layer, head] = 0
    close(np.asarray(static)[valid], plain(decoder, given, ones)[0][valid], 1e-5)


@pytest.mark.parametrize("name", ["grouped", "windows, soft caps, offset norms"])
def test_a_prefix_sees_itself_in_both_directions(name: str) -> None:
    cfg = CONFIGS[name]
    decoder, given = random_decoder(cfg, 3), inputs(cfg, (9, 14, 12), 14, 4, prefix=(6, 14, 0))
    tap = dataclasses.replace(given.tap, weights=True)
    hidden, tapped = run(decoder, given, tap=tap)
    ones, valid = np.ones((3, cfg.layers, cfg.heads)), np.asarray(given.valid)
    expected, maps = plain(decoder, given, ones)
    close(np.asarray(hidden)[valid], expected[valid], 1e-5)
    rows = np.asarray(tap.rows)
    picked = np.stack([maps[:, i][:, :, rows[i]] for i in range(3)], 1)
    close(tapped.weights, picked, 1e-5)
    causal, _ = plain(decoder, dataclasses.replace(given, prefix=None), ones)
    assert np.abs(causal[0, :6] - expected[0, :6]).max() > 0.1
    drop = frozenset((1, head) for head in range(cfg.heads)) | {(2, 1)}
    static, _ = run(decoder, given, static_heads=drop)
    for layer, head in drop:
        ones[:, layer, head] = 0
    close(np.asarray(static)[valid], plain(decoder, given, ones)[0][valid], 1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["grouped", "windows, soft caps, offset norms"])
def test_cached_decoding_after_a_prefix(name: str, side: str) -> None:
    """Prompts of two lengths, padded, then ten tokens one by one; windows are left behind."""
    cfg, lengths, new = CONFIGS[name], (7, 4), 10
    decoder = random_decoder(cfg, 2)
    given = inputs(cfg, tuple(n + new for n in lengths), 7 + new, 3, prefix=lengths)
    expected, _ = plain(decoder, given, np.ones((2, cfg.layers, cfg.heads)))
    span = [slice(7 - n, 7) if side == "left" else slice(0, n) for n in lengths]
    x, positions = np.zeros((2, 7, cfg.dim), np.float32), np.zeros((1, 2, 7), np.int32)
    valid = np.zeros((2, 7), bool)
    for row, n in enumerate(lengths):
        x[row, span[row]] = given.x[row, :n]
        positions[0, row, span[row]] = np.arange(n)
        valid[row, span[row]] = True
    first = Inputs(*map(jnp.asarray, (x, positions, valid)), prefix=jnp.asarray(valid))
    step = jax.jit(lambda inputs, cache: decoder(inputs, cache=cache)[:2])
    hidden, cache = step(first, decoder.empty_cache(2, 7 + new))
    for row, n in enumerate(lengths):
        close(hidden[row, span[row]], expected[row, :n], 1e-5)
    for at in range(new):
        slot = np.array(lengths) + at
        token = Inputs(
            jnp.stack([given.x[row, i : i + 1] for row, i in enumerate(slot)]),
            jnp.asarray(slot[None, :, None], jnp.int32),
            jnp.ones((2, 1), bool),
        )
        hidden, cache = step(token, cache)
        close(hidden[:, 0], expected[np.arange(2), slot], 1e-5)


def test_a_bfloat16_offset_norm_scales_before_it_casts() -> None:
    rng = np.random.default_rng(1)
    norm = GEMMA.norm(64, jnp.bfloat16)
    scale = jnp.asarray(rng.normal(0, 0.3, 64), jnp.bfloat16)
    norm.scale = nnx.Param(scale)
    x = jnp.asarray(rng.normal(0, 2, (5, 64)), jnp.bfloat16)
    x64 = np.asarray(x, np.float64)
    exact = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + 1e-6)
    exact = exact * (1 + np.asarray(scale, np.float64))
    assert np.array_equal(norm(x), jnp.asarray(exact, jnp.bfloat16))


def test_embeddings_are_scaled_in_their_dtype() -> None:
    cfg = dataclasses.replace(SMALL, embed_scale=3584**0.5)
    tokens = jnp.arange(6)[None]
    for dtype, factor in ((jnp.float32, 3584**0.5), (jnp.bfloat16, 59.75)):
        decoder = random_decoder(cfg, 1, dtype)
        rows = decoder.embed.embedding[...][:6] * jnp.asarray(factor, dtype)
        assert np.array_equal(decoder.embed(tokens)[0], rows)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_all_ones_mask_is_bit_identical_to_none(dtype: Any) -> None:
    decoder, given = random_decoder(SMALL, 1, dtype), inputs(SMALL, (7, 11), 11, seed=2)
    given = dataclasses.replace(given, x=given.x.astype(dtype))
    ones = jnp.ones((SMALL.layers, SMALL.heads))

    without = jax.tree.leaves(run(decoder, given, head_mask=None, tap=given.tap))
    for mask in (ones, jnp.broadcast_to(ones, (2, *ones.shape))):
        again = jax.tree.leaves(run(decoder, given, head_mask=mask, tap=given.tap))
        for a, b in zip(again, without, strict=True):
            assert np.array_equal(a, b)


def test_batched_masks_equal_one_run_per_mask() -> None:
    decoder = random_decoder(SMALL, 5)
    given = inputs(SMALL, (12, 8, 10, 12), 12, seed=6)
    masks = np.random.default_rng(7).integers(0, 2, (4, SMALL.layers, SMALL.heads))
    masks = masks.astype(np.float32)
    together, tapped = run(decoder, given, head_mask=jnp.asarray(masks), tap=given.tap)
    for row, mask in enumerate(masks):
        hidden, alone = run(decoder, given, head_mask=jnp.asarray(mask), tap=given.tap)
        close(together[row], hidden[row], 1e-5)
        close(tapped.mass[:, row], alone.mass[:, row], 1e-5)
    assert not np.allclose(together, run(decoder, given)[0], atol=1e-2), "masks did nothing"


@pytest.mark.parametrize(
    "drop",
    [
        {(0, 0)},
        {(1, 2), (1, 3), (2, 5)},
        {(1, head) for head in range(6)},
        {(layer, head) for layer in range(3) for head in range(6)},
    ],
    ids=["one", "some", "a whole layer", "all"],
)
@pytest.mark.parametrize(
    "name",
    [
        "grouped",
        "multi-query",
        "windows, soft caps, offset norms",
        "latent attention, experts after a dense layer",
    ],
)
def test_static_heads_equal_the_traced_mask(name: str, drop: set[tuple[int, int]]) -> None:
    cfg = CONFIGS[name]
    decoder, given = random_decoder(cfg, 8), inputs(cfg, (12, 8), 12, seed=9)
    mask = np.ones((cfg.layers, cfg.heads), np.float32)
    mask[tuple(np.array(sorted(drop)).T)] = 0
    tap = dataclasses.replace(given.tap, weights=True)
    static, dropped = run(decoder, given, static_heads=frozenset(drop), tap=tap)
    traced, tapped = run(decoder, given, head_mask=jnp.asarray(mask), tap=tap)
    close(static, traced, 1e-5)
    kept = mask[:, None, :, None] > 0
    close(dropped.mass, np.where(kept[..., None], tapped.mass, 0), 1e-5)
    assert np.array_equal(dropped.top, np.where(kept, tapped.top, 0))
    assert dropped.weights.shape == tapped.weights.shape


def test_static_heads_do_less_work() -> None:
    cfg = dataclasses.replace(SMALL, layers=2)
    decoder, given = random_decoder(cfg, 8), inputs(cfg, (64,), 64, seed=9)

    def flops(drop: frozenset[tuple[int, int]]) -> float:
        lowered = jax.jit(
            lambda x: run(decoder, dataclasses.replace(given, x=x), static_heads=drop)
        )
        cost = lowered.lower(given.x).compile().cost_analysis()
        return float(cost["flops"])

    few = frozenset({(0, 0)})
    many = frozenset((layer, head) for layer in range(2) for head in range(5))
    assert flops(many) < 0.75 * flops(few)


def test_bad_masks_are_refused_by_name() -> None:
    decoder, given = random_decoder(SMALL, 1), inputs(SMALL, (5, 5), 5, seed=1)
    for shape in [(3, 5), (6, 3), (3, 3, 6), (1, 3, 6), (6,), (2, 2, 3, 6)]:
        with pytest.raises(UserError, match=r"head_mask has shape .*\[3, 6\]"):
            run(decoder, given, head_mask=jnp.ones(shape))
    with pytest.raises(UserError, match=r"head 6 of layer 0.*heads 0\.\.5"):
        run(decoder, given, static_heads=frozenset({(0, 6)}))
    cache = decoder.empty_cache(2, 5)
    with pytest.raises(UserError, match="cache=None"):
        decoder(given.inputs(), cache=cache, static_heads=frozenset({(0, 1)}))


@pytest.mark.parametrize("block", [4, 5, 16])
def test_query_blocks_equal_one_block(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, given = random_decoder(SMALL, 2), inputs(SMALL, (17, 11), 17, seed=3)
    whole, tapped = run(decoder, given, tap=given.tap)
    monkeypatch.setattr(attention_module, "QUERY_BLOCK", block)
    blocked, again = run(decoder, given, tap=given.tap)
    close(blocked, whole, 1e-5)
    close(again.mass, tapped.mass, 1e-5)


def test_blocks_with_a_cache_equal_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, given = random_decoder(SMALL, 2), inputs(SMALL, (17, 17), 17, seed=3)
    whole, _ = run(decoder, given)
    monkeypatch.setattr(attention_module, "QUERY_BLOCK", 4)
    cache = decoder.empty_cache(2, 20)
    parts = []
    for first, last in ((0, 6), (6, 7), (7, 17)):
        span = slice(first, last)
        hidden, cache, _ = decoder(given.inputs(span), cache=cache)
        parts.append(hidden)
    close(jnp.concatenate(parts, 1), whole, 1e-5)
    assert int(cache.length) == 17


@pytest.mark.parametrize("name", CONFIGS)
def test_padding_on_either_side_changes_nothing(name: str) -> None:
    cfg = CONFIGS[name]
    decoder, given = random_decoder(cfg, 4), inputs(cfg, (8, 8), 8, seed=5)
    alone, tapped = run(decoder, given, tap=given.tap)
    for before, after in ((5, 0), (0, 3), (2, 4)):
        pad = (before, after)
        tap = Tap(rows=given.tap.rows + before, sets=jnp.pad(given.tap.sets, ((0, 0), (0, 0), pad)))
        padded = Given(
            x=jnp.pad(given.x, ((0, 0), pad, (0, 0)), constant_values=3.0),
            positions=jnp.pad(given.positions, ((0, 0), (0, 0), pad)),
            valid=jnp.pad(given.valid, ((0, 0), pad)),
            tap=tap,
        )
        hidden, again = run(decoder, padded, tap=tap)
        assert np.isfinite(hidden).all()
        close(hidden[:, before : before + 8], alone, 1e-5)
        close(again.mass, tapped.mass, 1e-5)
        assert np.array_equal(again.top, tapped.top + before)


def lowered(cfg: DecoderConfig, slots: int, deepstack: int = 0) -> Any:
    """The scoring pass (hidden states and taps), lowered without allocating weights.

    Args:
        deepstack: layers with DeepStack features.
    """
    graphdef, state = nnx.split(nnx.eval_shape(lambda: Decoder(cfg, rngs=nnx.Rngs(0))))

    def score(state: Any, inputs: Inputs, tap: Any) -> Any:
        return nnx.merge(graphdef, state)(inputs, tap=tap)

    x = jax.ShapeDtypeStruct((1, slots, cfg.dim), jnp.float32)
    layers = jax.ShapeDtypeStruct((deepstack, *x.shape), jnp.float32) if deepstack else None
    positions = jax.ShapeDtypeStruct((cfg.rope.axes, 1, slots), jnp.int32)
    valid = jax.ShapeDtypeStruct((1, slots), bool)
    rows = jax.ShapeDtypeStruct((1, 3), jnp.int32)
    sets = jax.ShapeDtypeStruct((1, 2, slots), jnp.float32)
    given = Inputs(x, positions, valid, layers)
    return jax.jit(score).lower(state, given, Tap(rows=rows, sets=sets))


def test_no_array_is_square_in_the_sequence() -> None:
    slots = 4096
    cfg = dataclasses.replace(SMALL, heads=4, kv_heads=4)
    shapes = {
        tuple(int(n) for n in found.split("x")[:-1])
        for found in re.findall(r"tensor<([0-9x]+x)[a-z]", lowered(cfg, slots).as_text())
    }
    assert (1, slots, cfg.dim) in shapes  # the pattern finds shapes at all
    square = [shape for shape in shapes if sum(n >= slots for n in shape) > 1]
    assert not square


def test_memory_grows_with_the_sequence_not_its_square() -> None:
    def temporary(slots: int) -> int:
        return int(lowered(SMALL, slots).compile().memory_analysis().temp_size_in_bytes)

    assert temporary(8192) < 2.3 * temporary(4096)


NAMES = sorted(path.parent.name for path in PUBLISHED.glob("*/config.json"))


@pytest.mark.parametrize(
    ("name", "deepstack"),
    [*((name, 0) for name in (*CONFIGS, *NAMES)), ("grouped", 3), ("qwen3-vl-8b", 3)],
)
def test_program_does_not_grow_with_depth(name: str, deepstack: int) -> None:
    """For every kind of decoder, and for that of every published config."""
    if name in CONFIGS:
        cfg = CONFIGS[name]
    else:
        raw = published_config(name)
        cfg = port_for(raw).read_config(raw).decoder

    def instructions(layers: int) -> int:
        windows = (cfg.windows * layers)[:layers]
        deep = dataclasses.replace(cfg, layers=layers, windows=windows)
        text = lowered(deep, 64, deepstack).as_text()
        return sum(" = " in line for line in text.splitlines())

    assert abs(instructions(36) - instructions(4)) <= 0.05 * instructions(4)


def test_tied_and_untied_heads_read_out_the_vocabulary() -> None:
    hidden = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, SMALL.dim)), jnp.float32)
    for tied in (True, False):
        decoder = random_decoder(dataclasses.replace(SMALL, tied=tied), 2)
        table = (
            np.asarray(decoder.embed.embedding[...]).T
            if tied
            else np.asarray(decoder.lm_head.kernel[...])
        )
        logits = decoder.logits(hidden.astype(jnp.float32))
        assert logits.dtype == jnp.float32
        expected = np.asarray(hidden, np.float64) @ table
        close(logits, expected, 1e-5)
        decoder.cfg = dataclasses.replace(decoder.cfg, final_softcap=0.5)
        close(decoder.logits(hidden), 0.5 * np.tanh(expected / 0.5), 1e-5)
