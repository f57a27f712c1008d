"""SigLIP 2 in its NaFlex form: images of any grid of patches, for which the position table is
resampled.

Axis letters: X images (of all samples), P patches, C values of a patch, D width.

Reference: transformers ``Siglip2VisionModel``. The blocks are SigLIP's. The patch embedding is
a matrix over the values of a patch by row, column and channel. The pooling head, and blocks
after those that a model reads, are part of the files, so they are kept (an export is complete),
but not computed.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.configs import ConfigReader
from model_ports.convert.rules import Layout, Rule, fused, pair
from model_ports.errors import UserError
from model_ports.nn.interpolate import antialias_weights, blend_table
from model_ports.nn.mlp import MLP, gelu_tanh
from model_ports.nn.norms import LayerNorm
from model_ports.vision.siglip import NORM_EPS, Siglip, siglip_rules
from model_ports.vision.vit import VitAttention, VitConfig, read_vit


@dataclasses.dataclass(frozen=True)
class NaflexConfig(VitConfig):
    """Shape and numerics of the tower.

    Attributes:
        pooling: the file has a pooling head.
    """

    pooling: bool = True


class PoolingHead(nnx.Module):
    """Parameters of the attention pooling that SigLIP 2 was trained with; never computed."""

    def __init__(self, cfg: NaflexConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype):
        self.probe = nnx.Param(jax.random.normal(rngs.params(), (cfg.dim,), dtype))
        self.attn = VitAttention(cfg.dim, cfg.heads, qkv_bias=True, rngs=rngs, dtype=dtype)
        self.norm = LayerNorm(cfg.dim, eps=cfg.norm_eps, dtype=dtype)
        self.mlp = MLP(cfg.dim, cfg.mlp_dim, cfg.dim, rngs=rngs, dtype=dtype, act=gelu_tanh)


class NaflexVit(Siglip):
    """Tower from patches of images of different grids to features."""

    cfg: NaflexConfig

    def __init__(self, cfg: NaflexConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.float32):
        super().__init__(cfg, rngs=rngs, dtype=dtype)
        self.head = PoolingHead(cfg, rngs=rngs, dtype=dtype) if cfg.pooling else None

    def position_embeddings(self, rows: jax.Array, columns: jax.Array, patches: int) -> jax.Array:
        """The table resized to the grid of each image.

        Args:
            rows, columns: int32 [X], of the grid; zeros for an image that is padding.
            patches: P; those after the last one of an image are padding.

        Returns:
            [X, P, D], dtype of the table.
        """
        side = self.cfg.side
        rows, columns = (jnp.maximum(count, 1)[:, None] for count in (rows, columns))
        row, column = jnp.divmod(jnp.arange(patches), columns)
        # Padding takes the last row: beyond the table there is nothing to weigh.
        row = jnp.minimum(row, rows - 1)
        return blend_table(
            self.positions[...].reshape(side, side, self.cfg.dim),
            antialias_weights(row, rows, side),
            antialias_weights(column, columns, side),
        )

    def features(
        self, patches: jax.Array, rows: jax.Array, columns: jax.Array, *, blocks: int
    ) -> jax.Array:
        """Features of every patch after some of the blocks, [X, P, D].

        Args:
            patches: [X, P, C], row-major, the values of a patch by row, column, channel; zeros
                at the end are padding.
            rows, columns: int32 [X], of each image's grid.
            blocks: how many blocks are applied (transformers' ``hidden_states[blocks]``).
        """
        count = patches.shape[1]
        valid = jnp.arange(count) < (rows * columns)[:, None]
        positions = self.position_embeddings(rows, columns, count)
        return self(patches, positions, valid, blocks=blocks)


def read_naflex(reader: ConfigReader, *, patch: int) -> NaflexConfig:
    """The tower of a ``siglip2_vision_model`` config (its reader is finished here).

    What a file leaves out is ``Siglip2VisionConfig``'s default; sizes must be there.

    Args:
        patch: side of a patch in pixels, where the config does not say.

    Raises:
        UserError: a missing, unknown or contradicting attribute, or another activation.
    """
    reader.expect("model_type", "siglip2_vision_model")
    reader.expect("hidden_act", "gelu_pytorch_tanh")
    reader.expect("num_channels", 3)
    table = reader.take("num_patches", int, 256)
    side = round(max(table, 0) ** 0.5)
    if side < 1 or side**2 != table:
        raise UserError(
            f"{reader.where}: num_patches = {table}; expected a square, the entries of the "
            "position table"
        )
    patch = reader.take("patch_size", int, patch)
    shape = read_vit(reader, image_size=side * patch, patch=patch, eps=NORM_EPS)
    cfg = NaflexConfig(**vars(shape), pooling=reader.take("vision_use_head", bool, True))
    reader.finish()
    return cfg


def naflex_rules(prefix: str, cfg: NaflexConfig) -> list[Rule]:
    """Key table of the tower.

    Args:
        prefix: of ``embeddings``, ``encoder`` and ``head``.
    """
    rules = siglip_rules(prefix, cfg, conv=False)
    if not cfg.pooling:
        return rules
    head, ours = f"{prefix}head.", "vision/head/"
    rules.append(Rule(f"{head}probe", f"{ours}probe", "vector", shape=(1, 1, cfg.dim)))
    rules += fused(f"{head}attention.in_proj_", f"{ours}attn/", "qkv")
    parts: tuple[tuple[str, str, Layout], ...] = (
        ("attention.out_proj", "attn/o", "linear"),
        ("layernorm", "norm", "vector"),
        ("mlp.fc1", "mlp/fc1", "linear"),
        ("mlp.fc2", "mlp/fc2", "linear"),
    )
    for key, param, layout in parts:
        rules += pair(f"{head}{key}", f"{ours}{param}", layout)
    return rules
