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
        k, v: [L, B, S, K, H].
        valid: bool [B, S], slots that hold a real token.
        length: int32 scalar, the next slot to write.
    """

    k: jax.Array
    v: jax.Array
    valid: jax.Array
    length: jax.Array

    @classmethod
    def empty(
        cls, layers: int, batch: int, slots: int, kv_heads: int, head_dim: int, dtype: jnp.dtype
    ) -> "KVCache":
        """A cache with no valid slot."""
        kv = jnp.zeros((layers, batch, slots, kv_heads, head_dim), dtype)
        valid = jnp.zeros((batch, slots), bool)
        return cls(k=kv, v=kv, valid=valid, length=jnp.zeros((), jnp.int32))
