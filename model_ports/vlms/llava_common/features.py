"""Features of crops into the order of the prompt.

Axis letters: B batch, I crops of a prompt, P tokens of a crop, V visual tokens with separators,
D model dim.
"""

import jax
import jax.numpy as jnp


def in_rows(tokens: jax.Array, index: jax.Array, separator: jax.Array) -> jax.Array:
    """Tokens of all crops -> the rows that the language model reads, [B, V, D].

    Args:
        tokens: [B, I * P, D].
        index: int32 [B, V], row of ``tokens``, or negative for the separator.
        separator: [D], the newline or row separator.
    """
    rows = jnp.take_along_axis(tokens, jnp.maximum(index, 0)[:, :, None], axis=1)
    return jnp.where(index[:, :, None] < 0, separator.astype(tokens.dtype), rows)
