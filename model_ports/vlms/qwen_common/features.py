"""From the vision tower's arrays to the visual tokens of each prompt.

Axis letters: B batch, I images of a prompt, W windows, C patches of a window, P values of a
patch, M tokens of a tower's image, V visual tokens of a prompt, D model dim.
"""

import jax
import jax.numpy as jnp

# Arrays of ``Batch.images`` that the towers read; ``index`` is the fourth.
TOWER_ARRAYS = ("patches", "valid", "hw")


def tower_inputs(images: dict[str, jax.Array]) -> list[jax.Array]:
    """``patches`` [B, I, W, C, P], ``valid`` bool [B, I, W, C] and ``hw`` int32 [B, I, W, C, 2]
    with B and I as one axis."""
    arrays = [images[name] for name in TOWER_ARRAYS]
    return [array.reshape(-1, *array.shape[2:]) for array in arrays]


def prompt_tokens(tokens: jax.Array, index: jax.Array) -> jax.Array:
    """Visual tokens of all images of each prompt, in prompt order, [B, V, D].

    Args:
        tokens: [B * I, M, D], as the tower gives them.
        index: int32 [B, V, 2], the image of each visual token and its place in the tower's
            order. Zero padding of V reads some token that no slot asks for.
    """
    batch, size = index.shape[0], tokens.shape[1]
    tokens = tokens.reshape(batch, -1, tokens.shape[-1])
    at = index[..., 0] * size + index[..., 1]
    return jnp.take_along_axis(tokens, at[:, :, None], axis=1)
