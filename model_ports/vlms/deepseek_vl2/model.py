"""DeepSeek-VL2 assembled from the shared parts, and its tensor names on disk.

Axis letters: B batch, I crops of a prompt, S side of a crop in pixels, P patches of a crop, C
width of the tower, V visual tokens with separators, D model dim.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.backbones.deepseek_moe import deepseek_moe_rules
from model_ports.convert.rules import Layout, Rule, fused, pair
from model_ports.decoder import Decoder
from model_ports.images.letterbox import VIEW_SEPARATOR
from model_ports.nn.mlp import MLP
from model_ports.vision.siglip import Siglip
from model_ports.vision.siglip2_naflex import NaflexConfig, PoolingHead
from model_ports.vision.vit import patchify
from model_ports.vlm import VLM, each_image
from model_ports.vlms.deepseek_vl2.config import JOINED, DeepseekVl2Config
from model_ports.vlms.llava_common.features import in_rows


class Tower(Siglip):
    """SigLIP and the pooling head that its file has, which is never computed."""

    def __init__(self, cfg: NaflexConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype):
        super().__init__(cfg, rngs=rngs, dtype=dtype)
        self.head = PoolingHead(cfg, rngs=rngs, dtype=dtype)


class DeepseekVl2(VLM):
    """Tower, 2 x 2 patches joined, MLP, separators, and a decoder of experts."""

    def __init__(self, config: DeepseekVl2Config, rngs: nnx.Rngs, dtype: jnp.dtype):
        super().__init__(Decoder(config.decoder, rngs=rngs, dtype=dtype))
        dim, joined = config.decoder.dim, config.vision.dim * JOINED**2
        self.vision = Tower(config.vision, rngs=rngs, dtype=dtype)
        self.projector_mlp = MLP(joined, dim, dim, rngs=rngs, dtype=dtype)
        self.newline = nnx.Param(jnp.zeros((dim,), dtype))
        self.view_separator = nnx.Param(jnp.zeros((dim,), dtype))

    def features(self, images: dict[str, jax.Array]) -> jax.Array:
        """Visual tokens and separators of all images of each prompt, in order, [B, V, D].

        Args:
            images: ``crops`` float32 [B, I, 3, S, S], and ``index`` int32 [B, V], the token of
                the crops at each place (negative: a separator). Zero padding changes nothing.
        """
        cfg, index = self.vision.cfg, images["index"]
        used = cfg.image_size  # whole patches of a crop

        def tokens(crops: jax.Array) -> jax.Array:
            patches = self.vision(patchify(crops[:, :, :used, :used], cfg.patch))
            return self.projector_mlp(join(patches, cfg.side))

        rows = in_rows(each_image(images["crops"], tokens), index, self.newline[...])
        between = (index == VIEW_SEPARATOR)[:, :, None]
        return jnp.where(between, self.view_separator[...].astype(rows.dtype), rows)


def join(patches: jax.Array, side: int) -> jax.Array:
    """Neighbouring patches to one token: [B, P, C] -> [B, tokens, C * JOINED**2].

    An odd side gets a row and a column of zeros at the end. The values of a token are in the
    order (channel, row, column) of ``torch.nn.functional.unfold``.

    Args:
        side: rows and columns of patches.
    """
    b, _, c = patches.shape
    more = -side % JOINED
    n = (side + more) // JOINED
    grid = jnp.pad(patches.reshape(b, side, side, c), ((0, 0), (0, more), (0, more), (0, 0)))
    grid = grid.reshape(b, n, JOINED, n, JOINED, c).transpose(0, 1, 3, 5, 2, 4)
    return grid.reshape(b, n * n, c * JOINED**2)


def layouts(config: DeepseekVl2Config) -> Mapping[str, Sequence[Rule]]:
    """The one on-disk layout: timm's names for the tower, transformers' for the language model."""
    return {
        "published": [
            *_tower_rules(config.vision),
            *pair("projector.layers.0", "projector_mlp/fc1", "linear"),
            *pair("projector.layers.2", "projector_mlp/fc2", "linear"),
            Rule("image_newline", "newline", "vector"),
            Rule("view_seperator", "view_separator", "vector"),  # [sic]
            *deepseek_moe_rules(
                config.decoder, model="language.model.", head="language.lm_head.weight"
            ),
        ]
    }


# (timm's suffix, our name, layout of the weight); all with biases.
_BLOCK: tuple[tuple[str, str, Layout], ...] = (
    ("norm1", "norm1", "vector"),
    ("norm2", "norm2", "vector"),
    ("attn.proj", "attn/o", "linear"),
    ("mlp.fc1", "mlp/fc1", "linear"),
    ("mlp.fc2", "mlp/fc2", "linear"),
)
_POOL: tuple[tuple[str, str, Layout], ...] = (
    ("q", "attn/q", "linear"),
    ("proj", "attn/o", "linear"),
    ("norm", "norm", "vector"),
    ("mlp.fc1", "mlp/fc1", "linear"),
    ("mlp.fc2", "mlp/fc2", "linear"),
)


def _tower_rules(cfg: NaflexConfig) -> list[Rule]:
    kernel = (cfg.dim, 3, cfg.patch, cfg.patch)
    table, latent = (1, cfg.side**2, cfg.dim), (1, 1, cfg.dim)
    block, pool = "vision.blocks.{l}.", "vision.attn_pool."
    rules = [
        Rule("vision.pos_embed", "vision/positions", "vector", shape=table),
        Rule("vision.patch_embed.proj.weight", "vision/patch/kernel", "linear", shape=kernel),
        Rule("vision.patch_embed.proj.bias", "vision/patch/bias", "vector"),
        Rule(f"{pool}latent", "vision/head/probe", "vector", shape=latent),
        *pair("vision.norm", "vision/norm", "vector"),
        *fused(f"{block}attn.qkv.", "vision/blocks/attn/", "qkv"),
        *fused(f"{pool}kv.", "vision/head/attn/", "kv"),
    ]
    for key, ours, layout in _BLOCK:
        rules += pair(f"{block}{key}", f"vision/blocks/{ours}", layout)
    for key, ours, layout in _POOL:
        rules += pair(f"{pool}{key}", f"vision/head/{ours}", layout)
    return rules
