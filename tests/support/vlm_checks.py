"""Parts of the tests of whole vision-language ports against their references.

A pair is the port and the reference with the same weights (``support.qwen25.Pair`` and its
kin); samples are (prompt, images).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from PIL import Image
from support.parity import assert_close, textured_image

from model_ports.nn.attention import Visible
from model_ports.nn.rope import rope_tables
from model_ports.prompt import Prompt, Side, collate, offset

Sample = tuple[Prompt, list[Image.Image]]
# Sizes of the images of each sample, the text, and whether the images come first.
Spec = tuple[tuple[tuple[int, int], ...], str, bool]


@partial(jax.jit, static_argnames="graphdef")
def forward(graphdef, params, batch):
    """Logits [B, T, vocab]."""
    model = nnx.merge(graphdef, params)
    hidden, _, _ = model.decoder(model.embed(batch))
    return model.decoder.logits(hidden)


def rows(batched: Any, prompt: Prompt, side: Side) -> np.ndarray:
    """A sample's real tokens, from a batched array without its batch axis."""
    start = offset(len(prompt), batched.shape[0], side)
    return np.asarray(batched)[start : start + len(prompt)]


def make_samples(pair: Any, specs: Sequence[Spec]) -> list[Sample]:
    """Prompts with textured images."""
    out = []
    for number, (sizes, text, image_first) in enumerate(specs):
        images = [textured_image(*size, seed=10 * number + i) for i, size in enumerate(sizes)]
        out.append((pair.processor.prepare(text, images, image_first=image_first), images))
    return out


def check_layer(pair: Any, prompt: Prompt, layer: int, own: slice) -> None:
    """One decoder layer and its rotary tables, on random activations at a prompt's positions.

    Args:
        own: the entries of the reference's tables that are not repetitions.
    """
    text, cfg = pair.reference.model.language_model, pair.config.decoder
    positions = prompt.positions[:, None]
    x = np.random.default_rng(3).normal(0, 1, (1, len(prompt), cfg.dim)).astype(np.float32)
    with torch.no_grad():
        tables = text.rotary_emb(torch.tensor(x), torch.tensor(positions))
        causal = torch.full((len(prompt),) * 2, -torch.inf).triu(1)[None, None]
        expected = text.layers[layer](
            torch.tensor(x), attention_mask=causal, position_embeddings=tables
        )
    cos, sin = rope_tables(jnp.asarray(positions), cfg.rope, cfg.head_dim)
    assert_close(cos, tables[0][..., own], 1e-5, "cos")
    assert_close(sin, tables[1][..., own], 1e-5, "sin")
    graphdef, state = nnx.split(nnx.merge(pair.graphdef, pair.params).decoder.layers)
    visible = Visible(first=jnp.zeros((), jnp.int32), valid=jnp.ones((1, len(prompt)), bool))

    @jax.jit
    def run(state, x):
        block = nnx.merge(graphdef, jax.tree.map(lambda p: p[layer], state))
        gate = jnp.ones((1, cfg.heads))
        return block(x, cos, sin, visible=visible, cached=None, gate=gate, tap=None)[0]

    assert_close(run(state, x), expected, 1e-5, "decoder layer")


def check_logits(pair: Any, samples: Sequence[Sample], side: Side) -> None:
    """All rows of a padded batch, to 1e-4 of the scale."""
    batch = collate([prompt for prompt, _ in samples], side=side)
    logits = forward(pair.graphdef, pair.params, batch)
    for row, (prompt, images) in enumerate(samples):
        expected = pair.forward(prompt, images).logits[0]
        assert expected.std() > 0.5  # the weights are wide enough to show a mistake
        assert_close(rows(logits[row], prompt, side), expected, 1e-4, f"logits of sample {row}")


def random_heads(pair: Any, count: int, seed: int) -> list[tuple[int, int]]:
    """Different (layer, head) of a pair's decoder."""
    cfg = pair.config.decoder
    picked = np.random.default_rng(seed).choice(cfg.layers * cfg.heads, count, replace=False)
    return [divmod(int(head), cfg.heads) for head in picked]
