"""Parts of plain vision transformers: patches, a class token, pre-norm blocks, and a scan over
stacked blocks.

Axis letters: B crops, S side of a crop in pixels, P tokens of a crop, D width, N heads, L blocks.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.configs import ConfigReader
from model_ports.convert.rules import Layout, Rule, pair
from model_ports.errors import UserError
from model_ports.nn.attention import full_attention
from model_ports.nn.linear import Linear
from model_ports.nn.mlp import MLP, gelu
from model_ports.nn.norms import LayerNorm
from model_ports.sharding import constrain


@dataclasses.dataclass(frozen=True)
class VitConfig:
    """Shape and numerics of a tower; every value comes from a checkpoint's config.json.

    Attributes:
        side: rows and columns of the position table, and of an image's patches where images
            have a fixed size.
        patch: side of a patch in pixels.
    """

    layers: int
    dim: int
    heads: int
    mlp_dim: int
    side: int
    patch: int
    norm_eps: float

    @property
    def image_size(self) -> int:
        """Side of a fixed-size image in pixels."""
        return self.side * self.patch


def read_vit(
    reader: ConfigReader, *, image_size: int, patch: int, eps: float | None = None
) -> VitConfig:
    """A tower with transformers' attribute names; the caller takes its image and patch size.

    Args:
        image_size, patch: in pixels.
        eps: epsilon of norms, where the config may leave it out.

    Raises:
        UserError: a missing attribute, or sizes that do not divide.
    """
    heads, dim = reader.take("num_attention_heads", int), reader.take("hidden_size", int)
    if image_size % patch:
        raise UserError(
            f"{reader.where}: image_size {image_size} is not a multiple of patch_size {patch}"
        )
    if dim % heads:
        raise UserError(
            f"{reader.where}: hidden_size {dim} is not a multiple of num_attention_heads, "
            f"{heads} heads"
        )
    given = () if eps is None else (eps,)
    return VitConfig(
        layers=reader.take("num_hidden_layers", int),
        dim=dim,
        heads=heads,
        mlp_dim=reader.take("intermediate_size", int),
        side=image_size // patch,
        patch=patch,
        norm_eps=reader.take("layer_norm_eps", float, *given),
    )


def patchify(crops: jax.Array, patch: int) -> jax.Array:
    """crops [B, C, H, W] -> row-major patch vectors [B, P, C * patch**2] in (c, dy, dx) order.

    A convolution with stride ``patch`` is a matrix product with these vectors.
    """
    b, c, h, w = crops.shape
    rows, columns = h // patch, w // patch
    grid = crops.reshape(b, c, rows, patch, columns, patch).transpose(0, 2, 4, 1, 3, 5)
    return grid.reshape(b, rows * columns, c * patch * patch)


class VitAttention(nnx.Module):
    """Full self-attention within a crop; queries, keys and values are apart, so that heads can
    be sharded."""

    def __init__(
        self, dim: int, heads: int, *, qkv_bias: bool, rngs: nnx.Rngs, dtype: jnp.dtype
    ) -> None:
        split = (heads, dim // heads)
        self.q = Linear((dim,), split, bias=qkv_bias, rngs=rngs, dtype=dtype)
        self.k = Linear((dim,), split, bias=qkv_bias, rngs=rngs, dtype=dtype)
        self.v = Linear((dim,), split, bias=qkv_bias, rngs=rngs, dtype=dtype)
        self.o = Linear(split, (dim,), bias=True, rngs=rngs, dtype=dtype)
        self.scale = (dim // heads) ** -0.5

    def __call__(self, x: jax.Array, valid: jax.Array | None = None) -> jax.Array:
        """x [B, P, D] -> [B, P, D]; ``valid`` bool [B, P] hides padding keys."""
        q = constrain(self.q(x), "batch", None, "heads", None)
        k = constrain(self.k(x), "batch", None, "heads", None)
        v = constrain(self.v(x), "batch", None, "heads", None)
        keys = jnp.ones(x.shape[:2], bool) if valid is None else valid
        return self.o(full_attention(q, k, v, keys, self.scale))


class VitBlock(nnx.Module):
    """Pre-norm block: attention and MLP with biases, optionally scaled per channel.

    Args:
        act: activation of the MLP.
        layer_scale: multiply both branches by learned vectors (LayerScale).
    """

    def __init__(
        self,
        cfg: VitConfig,
        *,
        qkv_bias: bool = True,
        act: Callable[[jax.Array], jax.Array] = gelu,
        layer_scale: bool = False,
        rngs: nnx.Rngs,
        dtype: jnp.dtype,
    ) -> None:
        def scale() -> nnx.Param[jax.Array] | None:
            return nnx.Param(jnp.full((cfg.dim,), 0.1, dtype)) if layer_scale else None

        self.norm1 = LayerNorm(cfg.dim, eps=cfg.norm_eps, dtype=dtype)
        self.attn = VitAttention(cfg.dim, cfg.heads, qkv_bias=qkv_bias, rngs=rngs, dtype=dtype)
        self.scale1 = scale()
        self.norm2 = LayerNorm(cfg.dim, eps=cfg.norm_eps, dtype=dtype)
        self.mlp = MLP(cfg.dim, cfg.mlp_dim, cfg.dim, act=act, rngs=rngs, dtype=dtype)
        self.scale2 = scale()

    def __call__(self, x: jax.Array, valid: jax.Array | None = None) -> jax.Array:
        """x [B, P, D] -> [B, P, D]; ``valid`` as in VitAttention."""
        x = x + _scaled(self.scale1, self.attn(self.norm1(x), valid))
        x = x + _scaled(self.scale2, self.mlp(self.norm2(x)))
        return constrain(x, "batch", None, None)


def _scaled(scale: nnx.Param[jax.Array] | None, x: jax.Array) -> jax.Array:
    return x if scale is None else scale[...] * x


# (name in the files of transformers' CLIP and SigLIP, our name, layout of the weight).
_BLOCK: tuple[tuple[str, str, Layout], ...] = (
    ("layer_norm1", "norm1", "vector"),
    ("layer_norm2", "norm2", "vector"),
    ("self_attn.q_proj", "attn/q", "linear"),
    ("self_attn.k_proj", "attn/k", "linear"),
    ("self_attn.v_proj", "attn/v", "linear"),
    ("self_attn.out_proj", "attn/o", "linear"),
    ("mlp.fc1", "mlp/fc1", "linear"),
    ("mlp.fc2", "mlp/fc2", "linear"),
)


def block_rules(key: str, param: str) -> list[Rule]:
    """Key table of VitBlock without LayerScale, with the names of transformers' CLIP and SigLIP.

    Args:
        key, param: prefixes with their last dot or slash; ``key`` has ``{l}``.
    """
    rules = []
    for name, ours, layout in _BLOCK:
        rules += pair(f"{key}{name}", f"{param}{ours}", layout)
    return rules


def stacked_blocks(make: Callable[[nnx.Rngs], nnx.Module], count: int, rngs: nnx.Rngs) -> Any:
    """``count`` blocks made by ``make``, their parameters stacked on axis 0."""

    @nnx.split_rngs(splits=count)
    @nnx.vmap(in_axes=0, out_axes=0)
    def stack(rngs: nnx.Rngs) -> nnx.Module:
        return make(rngs)

    return stack(rngs)


def run_blocks(blocks: Any, x: jax.Array, *, count: int | None = None, **kwargs: Any) -> jax.Array:
    """Apply stacked blocks in order.

    Args:
        x: [B, P, D].
        count: only the first so many blocks; None for all.
        kwargs: passed to every block.
    """
    graphdef, stacked = nnx.split(blocks)
    if count is not None:
        stacked = jax.tree.map(lambda p: p[:count], stacked)

    def block(x: jax.Array, params: Any) -> tuple[jax.Array, None]:
        with jax.named_scope("vision_layer"):
            return nnx.merge(graphdef, params)(x, **kwargs), None

    x, _ = jax.lax.scan(block, x, stacked)
    return x


class ClassTokenVit(nnx.Module):
    """Patches of a crop behind a class token, with learned positions, and blocks.

    Args:
        patch_bias: bias of the patch embedding.
        block: options of VitBlock.
    """

    def __init__(
        self,
        cfg: VitConfig,
        *,
        patch_bias: bool,
        rngs: nnx.Rngs,
        dtype: jnp.dtype,
        **block: Any,
    ) -> None:
        self.cfg = cfg
        pixels = 3 * cfg.patch**2
        self.patch = Linear((pixels,), (cfg.dim,), bias=patch_bias, rngs=rngs, dtype=dtype)
        self.cls = nnx.Param(jnp.zeros((cfg.dim,), dtype))
        table = (1 + cfg.side**2, cfg.dim)
        self.positions = nnx.Param(0.02 * jax.random.normal(rngs.params(), table, dtype))
        self.blocks = stacked_blocks(
            lambda r: VitBlock(cfg, rngs=r, dtype=dtype, **block), cfg.layers, rngs
        )

    def embed(self, crops: jax.Array) -> jax.Array:
        """crops [B, 3, S, S] -> [B, 1 + P, D], the class token first."""
        x = self.patch(patchify(crops, self.cfg.patch).astype(self.cls[...].dtype))
        cls = jnp.broadcast_to(self.cls[...], (x.shape[0], 1, self.cfg.dim))
        return jnp.concatenate([cls, x], axis=1) + self.positions[...]
