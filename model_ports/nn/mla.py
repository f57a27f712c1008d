"""Multi-head latent attention (MLA): keys and values of all heads come from one small vector.

Axis letters: B batch, T query sequence, S key sequence, N heads, D model dim, H query and key
dims of a head (unrotated, then rotated), V value dims of a head, C latent dims.

Every token is compressed to C dims, normed, and expanded to the unrotated key and the value of
each head; one rotated key part is shared by all heads. Attention weights are per head, so head
masks and taps mean what they mean elsewhere. The cache holds the expanded keys and values: the
same numbers as a cache of latents, and heads can be sharded.

Source: DeepSeek-V2, section 2.1; transformers ``DeepseekV2Attention``.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.nn.attention import Tap, Tapped, Visible, attend
from model_ports.nn.linear import Linear
from model_ports.nn.norms import RMSNorm
from model_ports.nn.rope import Pairs, apply_rope

# Of the latent's norm; the published code has it fixed, whatever the config's epsilon.
LATENT_EPS = 1e-6


@dataclasses.dataclass(frozen=True)
class Latent:
    """Sizes of the parts.

    Attributes:
        rank: C, dims of the latent.
        nope: unrotated query and key dims of each head.
        rope: rotated query dims of each head, and of the shared key part.
        value: V, value dims of each head.
    """

    rank: int
    nope: int
    rope: int
    value: int

    @property
    def head_dim(self) -> int:
        """H, query and key dims of a head."""
        return self.nope + self.rope


class LatentAttention(nnx.Module):
    """MLA without compressed queries; called like ``block.Attention``."""

    def __init__(
        self,
        dim: int,
        heads: int,
        latent: Latent,
        *,
        scale: float,
        pairs: Pairs,
        rngs: nnx.Rngs,
        dtype: jnp.dtype,
    ):
        self.dim, self.heads, self.latent = dim, heads, latent
        self.scale, self.pairs = scale, pairs
        expanded = (heads, latent.nope + latent.value)
        self.q = Linear((dim,), (heads, latent.head_dim), bias=False, rngs=rngs, dtype=dtype)
        self.kv_a = Linear((dim,), (latent.rank + latent.rope,), bias=False, rngs=rngs, dtype=dtype)
        self.kv_norm = RMSNorm(latent.rank, eps=LATENT_EPS, dtype=dtype)
        self.kv_b = Linear((latent.rank,), expanded, bias=False, rngs=rngs, dtype=dtype)
        self.o = Linear((heads, latent.value), (dim,), bias=False, rngs=rngs, dtype=dtype)

    def keep(self, heads: tuple[int, ...]) -> "LatentAttention":
        """The same attention with only the given heads."""
        index = jnp.array(heads, jnp.int32)
        kept: LatentAttention = nnx.eval_shape(
            lambda: LatentAttention(
                self.dim,
                len(heads),
                self.latent,
                scale=self.scale,
                pairs=self.pairs,
                rngs=nnx.Rngs(0),
                dtype=jnp.float32,
            )
        )
        kept.kv_a, kept.kv_norm = self.kv_a, self.kv_norm
        kept.q.kernel = nnx.Param(self.q.kernel[...][:, index])
        kept.kv_b.kernel = nnx.Param(self.kv_b.kernel[...][:, index])
        kept.o.kernel = nnx.Param(self.o.kernel[...][index])
        return kept

    def __call__(
        self,
        x: jax.Array,
        cos: jax.Array,
        sin: jax.Array,
        *,
        visible: Visible,
        cached: tuple[jax.Array, jax.Array] | None,
        gate: jax.Array,
        tap: Tap | None,
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array], Tapped | None]:
        """x [B, T, D] -> (output [B, T, D], (k [B, S, N, H], v [B, S, N, V]), tapped).

        Args:
            cos, sin: [B, T, R/2] for the R rotated dims.
            cached, gate: as in ``block.Attention``.
        """
        sizes = self.latent
        q, turned = jnp.split(self.q(x), [sizes.nope], axis=-1)
        q = jnp.concatenate([q, apply_rope(turned, cos, sin, self.pairs)], axis=-1)
        latent, shared = jnp.split(self.kv_a(x), [sizes.rank], axis=-1)
        shared = apply_rope(shared[:, :, None], cos, sin, self.pairs)
        k, v = jnp.split(self.kv_b(self.kv_norm(latent)), [sizes.nope], axis=-1)
        k = jnp.concatenate([k, jnp.broadcast_to(shared, (*k.shape[:3], sizes.rope))], axis=-1)
        z, kv, tapped = attend(
            q, k, v, visible=visible, cached=cached, gate=gate, tap=tap, scale=self.scale
        )
        return self.o(z), kv, tapped
