"""Assembly: InternViT, pixel shuffle, projector, decoder.

Axis letters: B batch, I tiles per prompt, S side of a tile in pixels, D model dim.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.decoder import Decoder
from model_ports.nn.mlp import MLP
from model_ports.nn.norms import LayerNorm
from model_ports.vision.intern_vit import InternViT, pixel_shuffle
from model_ports.vlm import VLM
from model_ports.vlms.internvl.config import InternVLConfig

# ``torch.nn.LayerNorm``'s default; the checkpoints' configs do not state it.
PROJECTOR_EPS = 1e-5


class Projector(nnx.Module):
    """LayerNorm, Linear, exact GELU, Linear."""

    def __init__(self, cfg: InternVLConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype):
        dim = cfg.decoder.dim
        self.norm = LayerNorm(cfg.projector_in, eps=PROJECTOR_EPS, dtype=dtype)
        self.mlp = MLP(cfg.projector_in, dim, dim, rngs=rngs, dtype=dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [..., projector_in] -> [..., D]."""
        return self.mlp(self.norm(x))


class InternVL(VLM):
    """Any InternVL of versions 2.5 to 3.5; they differ in the decoder's config only."""

    def __init__(self, cfg: InternVLConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.float32):
        super().__init__(Decoder(cfg.decoder, rngs=rngs, dtype=dtype))
        self.shuffle = cfg.shuffle
        self.vision = InternViT(cfg.vision, rngs=rngs, dtype=dtype)
        self.projector = Projector(cfg, rngs=rngs, dtype=dtype)

    def features(self, images: dict[str, jax.Array]) -> jax.Array:
        """Visual tokens of all tiles in order.

        Args:
            images: ``tiles`` float32 [B, I, 3, S, S]; zero tiles at the end are padding.

        Returns:
            [B, I * tokens per tile, D].
        """
        tiles = images["tiles"]
        patches = self.vision(tiles.reshape(-1, *tiles.shape[2:]))
        tokens = self.projector(pixel_shuffle(patches, self.shuffle))
        return tokens.reshape(tiles.shape[0], -1, tokens.shape[-1])
