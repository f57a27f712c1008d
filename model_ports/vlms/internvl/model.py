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
from model_ports.vlm import VLM, each_image
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

    def __init__(self, config: InternVLConfig, rngs: nnx.Rngs, dtype: jnp.dtype):
        super().__init__(Decoder(config.decoder, rngs=rngs, dtype=dtype))
        self.shuffle = config.shuffle
        self.vision = InternViT(config.vision, rngs=rngs, dtype=dtype)
        self.projector = Projector(config, rngs=rngs, dtype=dtype)

    def features(self, images: dict[str, jax.Array]) -> jax.Array:
        """Visual tokens of all tiles in order.

        Args:
            images: ``tiles`` float32 [B, I, 3, S, S]; zero tiles at the end are padding.

        Returns:
            [B, I * tokens per tile, D].
        """

        def tokens(tiles: jax.Array) -> jax.Array:
            return self.projector(pixel_shuffle(self.vision(tiles), self.shuffle))

        return each_image(images["tiles"], tokens)
