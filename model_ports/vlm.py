"""What every model is to the rest of the code: a batch in, hidden states out.

Axis letters: A position axes, B batch, T sequence, V visual tokens, D model dim, J decoder
layers with DeepStack features, I images (or crops) of a prompt, P tokens of one of them.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.decoder import Decoder, Inputs


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """Padded model input. Padding may be on either side.

    Attributes:
        tokens: int32 [B, T].
        valid: bool [B, T], False on padding.
        positions: int32 [A, B, T] rotary positions.
        visual_index: int32 [B, T], row of ``VLM.features`` that replaces the embedding;
            -1 for text.
        images: the vision tower's arrays, each with leading axis B; empty without images.
        prefix: bool [B, T] or None, tokens that attend to each other in both directions.
    """

    tokens: jax.Array
    valid: jax.Array
    positions: jax.Array
    visual_index: jax.Array
    images: dict[str, jax.Array]
    prefix: jax.Array | None = None

    @property
    def next_position(self) -> jax.Array:
        """int32 [B]: the rotary position of the first token after the prompt (on all axes)."""
        return jnp.max(jnp.where(self.valid[None], self.positions, -1), axis=(0, 2)) + 1


class Features(NamedTuple):
    """What a vision side gives the decoder.

    Attributes:
        tokens: [B, V, D], in the places of the visual tokens.
        deepstack: [J, B, V, D] or None, added there after each of the first J layers.
    """

    tokens: jax.Array
    deepstack: jax.Array | None = None


class VLM(nnx.Module):
    """A decoder with or without a vision side. Text models use this class as it is."""

    decoder: Decoder

    def __init__(self, decoder: Decoder):
        self.decoder = decoder

    def features(self, images: dict[str, Any]) -> jax.Array:
        """Projected image features [B, V, D] for the arrays of ``Batch.images``."""
        raise NotImplementedError(f"{type(self).__name__} reads no images")

    def visual(self, images: dict[str, Any]) -> Features:
        """All that the decoder gets of the images; a model with DeepStack overrides this."""
        return Features(self.features(images))

    def embed(self, batch: Batch) -> Inputs:
        """Token embeddings with image features in their places."""
        x, deepstack = self.decoder.embed(batch.tokens), None
        if batch.images:
            with jax.named_scope("vision"):
                tokens, layers = jax.tree.map(
                    lambda a: a.astype(x.dtype), self.visual(batch.images)
                )
            if layers is not None:
                deepstack = jnp.stack(
                    [place(layer, batch.visual_index, jnp.zeros_like(x)) for layer in layers]
                )
            x = place(tokens, batch.visual_index, x)
        return Inputs(x, batch.positions, batch.valid, deepstack, prefix=batch.prefix)


def place(features: jax.Array, index: jax.Array, x: jax.Array) -> jax.Array:
    """Rows of ``features`` [B, V, D] where ``index`` (int32 [B, T]) names one, else x [B, T, D]."""
    rows = jnp.clip(index, 0, features.shape[1] - 1)
    gathered = jnp.take_along_axis(features, rows[:, :, None], axis=1)
    return jnp.where(index[:, :, None] >= 0, gathered, x)


def each_image(images: jax.Array, tokens: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Tokens of all images of each prompt, in order: [B, I, ...] -> [B, I * P, D].

    Args:
        tokens: [B * I, ...] -> [B * I, ..., D]; the axes between count as P, row-major.
    """
    out = tokens(images.reshape(-1, *images.shape[2:]))
    return out.reshape(images.shape[0], -1, out.shape[-1])
