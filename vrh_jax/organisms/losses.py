"""Losses and metrics of organism training.

Axis letters: L layers, B batch, N heads, T sequence, Q answer rows, W wrapper rows, D dim.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from model_ports.decoder import Decoder, Inputs
from model_ports.nn.attention import Tap
from vrh_jax.organisms.sequences import WRAPPER


class Knobs(NamedTuple):
    """Traced weights of one training step, so that schedules do not recompile.

    Attributes:
        mass: weight of the visual mass at answer rows, mean over heads.
        sparse: weight of the concave penalty on each head's visual mass at answer rows.
        wrapper: weight of the mean visual mass at the rows between image and answer.
        dropout: probability that a head is removed, per sample.
        noise: standard deviation of Gaussian noise added to visual tokens.
    """

    mass: float = 0.0
    sparse: float = 0.0
    wrapper: float = 0.0
    dropout: float = 0.0
    noise: float = 0.0


TYPICAL_ROWS = 6
_KNEE = 0.05  # visual mass at which the concave penalty bends


def decoder_losses(
    decoder: Decoder,
    x: jax.Array,
    positions: jax.Array,
    batch: dict[str, jax.Array],
    knobs: Knobs,
    key: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Cross-entropy of answers plus the visual-mass penalties.

    Args:
        x: embeddings [B, T, D].
        positions: int32 [A, B, T].
        batch: valid and visual [B, T] (visual != -1 marks visual tokens), rows, targets,
            weights, looks [B, Q].

    Returns:
        (scalar loss, metrics: ce, mass [L, N] at answer rows, right [B, Q]).
    """
    cfg = decoder.cfg
    keep = jax.random.bernoulli(key, 1 - knobs.dropout, (x.shape[0], cfg.layers, cfg.heads))
    first = batch["rows"][:, :1]
    wrapper = first - 1 - jnp.arange(WRAPPER)[None, :]
    tap = Tap(
        rows=jnp.concatenate([batch["rows"], wrapper], axis=1),
        sets=(batch["visual"] != -1).astype(jnp.float32)[:, None, :],
    )
    inputs = Inputs(x, positions, batch["valid"])
    hidden, _, tapped = decoder(inputs, head_mask=keep.astype(jnp.float32), tap=tap)
    if tapped is None:
        raise ValueError("the decoder returned no rows for its tap")
    logits = decoder.logits(jnp.take_along_axis(hidden, batch["rows"][:, :, None], axis=1))
    log_p = jax.nn.log_softmax(logits)
    nll = -jnp.take_along_axis(log_p, batch["targets"][:, :, None], axis=2)[:, :, 0]
    ce = jnp.sum(nll * batch["weights"]) / x.shape[0]

    mass = tapped.mass[..., 0]  # [L, B, N, Q + W]
    # Per answer of a box's length, so that a question's only row is not penalised more.
    looks = batch["looks"] / TYPICAL_ROWS
    q = looks.shape[1]
    at_answer = jnp.einsum("lbnq,bq->ln", mass[..., :q], looks) / x.shape[0]
    at_wrapper = jnp.mean(mass[..., q:], axis=(1, 3))
    concave = jnp.log1p(at_answer / _KNEE) / jnp.log1p(1 / _KNEE)
    loss = (
        ce
        + knobs.mass * jnp.mean(at_answer)
        + knobs.sparse * jnp.mean(concave)
        + knobs.wrapper * jnp.mean(at_wrapper)
    )
    right = (jnp.argmax(logits, axis=-1) == batch["targets"]).astype(jnp.float32)
    return loss, {"ce": ce, "mass": at_answer, "wrapper": jnp.mean(at_wrapper), "right": right}


def symbolic_inputs(
    decoder: Decoder, bag: dict[str, Any], batch: dict[str, jax.Array], noise: Any, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(embeddings [B, T, D] with object tokens in the visual slots, positions [1, B, T])."""
    words = decoder.embed.embedding[...][batch["words"]].sum(axis=2)
    places = sum(bag["coord"][i][batch["bins"][..., i]] for i in range(4))
    things = words + places  # [B, O, D]
    index = jnp.clip(batch["visual"], 0)[:, :, None]
    seen = jnp.take_along_axis(things, index, axis=1)
    seen = jnp.where(batch["visual"][:, :, None] == -2, bag["background"], seen)
    seen = seen + noise * jax.random.normal(key, seen.shape)
    text = decoder.embed(batch["tokens"])
    x = jnp.where(batch["visual"][:, :, None] == -1, text, seen)
    b, t = batch["tokens"].shape
    return x, jnp.broadcast_to(jnp.arange(t), (1, b, t))
