"""Key-value cache with one shared write position.

Every row of a batch writes the same slot, whatever its prompt length: validity is per slot
and rotary positions are separate, so left and right padding give the same answers.
"""

import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVCache:
    """Cached keys and values of all layers.

    Attributes:
        k, v: [L, B, S, K, H]; H of the values may be another one.
        valid: bool [B, S], slots that hold a real token.
        length: int32 scalar, the next slot to write.
    """

    k: jax.Array
    v: jax.Array
    valid: jax.Array
    length: jax.Array

    @classmethod
    def empty(
        cls,
        layers: int,
        batch: int,
        slots: int,
        kv_heads: int,
        head_dim: int,
        dtype: jnp.dtype,
        *,
        value_dim: int | None = None,
    ) -> "KVCache":
        """A cache with no valid slot; ``value_dim`` is the values' head dim (None: head_dim)."""
        k = jnp.zeros((layers, batch, slots, kv_heads, head_dim), dtype)
        v = k if value_dim in (None, head_dim) else jnp.zeros((*k.shape[:-1], value_dim), dtype)
        valid = jnp.zeros((batch, slots), bool)
        return cls(k=k, v=v, valid=valid, length=jnp.zeros((), jnp.int32))
