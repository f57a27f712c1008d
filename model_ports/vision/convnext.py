"""ConvNeXt trunk: convolutional stages on a map that gets coarser, no head.

Axis letters: B crops, H, W rows and columns of a map, C channels, L blocks of a stage.

Reference: transformers ``ConvNextModel`` with every norm's epsilon at 1e-5 (as in CLIP's
ConvNeXt-XXLarge; other ConvNeXts have 1e-6) and without its pooled norm. Maps are [B, H, W, C].
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from model_ports.convert.rules import Layout, Rule, pair
from model_ports.nn.linear import Linear
from model_ports.nn.mlp import MLP
from model_ports.nn.norms import LayerNorm
from model_ports.sharding import constrain
from model_ports.vision.vit import run_blocks, stacked_blocks

STEM, STEP, KERNEL = 4, 2, 7  # strides of stem and stages, side of the depthwise kernels


@dataclasses.dataclass(frozen=True)
class ConvNextConfig:
    """Shape and numerics of the trunk.

    Attributes:
        dims, depths: channels and blocks of each stage.
    """

    dims: tuple[int, ...]
    depths: tuple[int, ...]
    norm_eps: float = 1e-5

    @property
    def stride(self) -> int:
        """Pixels along one side of an output cell."""
        return STEM * STEP ** (len(self.dims) - 1)


class PatchConv(nnx.Module):
    """Convolution whose stride is its kernel's side, as a matrix product with patches."""

    def __init__(self, side: int, inputs: int, outputs: int, rngs: nnx.Rngs, dtype: jnp.dtype):
        self.side = side
        self.linear = Linear((inputs * side**2,), (outputs,), bias=True, rngs=rngs, dtype=dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] -> [B, H / side, W / side, outputs]."""
        b, h, w, c = x.shape
        s = self.side
        patches = x.reshape(b, h // s, s, w // s, s, c).transpose(0, 1, 3, 5, 2, 4)
        return self.linear(patches.reshape(b, h // s, w // s, c * s * s))


class DepthwiseConv(nnx.Module):
    """One 7 x 7 kernel per channel, zero padding, stride 1."""

    def __init__(self, dim: int, rngs: nnx.Rngs, dtype: jnp.dtype):
        shape = (dim, KERNEL, KERNEL)
        self.kernel = nnx.Param(jax.random.normal(rngs.params(), shape, dtype) / KERNEL)
        self.bias = nnx.Param(jnp.zeros((dim,), dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] -> [B, H, W, C]."""
        kernel = self.kernel[...].transpose(1, 2, 0)[:, :, None]  # [7, 7, 1, C]
        y = jax.lax.conv_general_dilated(
            x,
            kernel,
            window_strides=(1, 1),
            padding="SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=x.shape[-1],
        )
        return y + self.bias[...]


class ConvNextBlock(nnx.Module):
    """Depthwise convolution, norm, MLP, then LayerScale (``gamma``) and the residual."""

    def __init__(self, dim: int, eps: float, rngs: nnx.Rngs, dtype: jnp.dtype):
        self.conv = DepthwiseConv(dim, rngs, dtype)
        self.norm = LayerNorm(dim, eps=eps, dtype=dtype)
        self.mlp = MLP(dim, 4 * dim, dim, rngs=rngs, dtype=dtype)
        self.gamma = nnx.Param(jnp.full((dim,), 1e-6, dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] -> [B, H, W, C]."""
        y = self.gamma[...] * self.mlp(self.norm(self.conv(x)))
        return constrain(x + y, "batch", None, None, None)


class Stage(nnx.Module):
    """Norm and convolution that halve the map (not in the first stage), then blocks."""

    def __init__(
        self, inputs: int, dim: int, depth: int, eps: float, rngs: nnx.Rngs, dtype: jnp.dtype
    ):
        first = inputs == 0
        self.norm = None if first else LayerNorm(inputs, eps=eps, dtype=dtype)
        self.down = None if first else PatchConv(STEP, inputs, dim, rngs, dtype)
        self.blocks = stacked_blocks(lambda r: ConvNextBlock(dim, eps, r, dtype), depth, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, inputs] -> [B, H / 2, W / 2, dim]."""
        if self.norm is not None and self.down is not None:
            x = self.down(self.norm(x))
        return run_blocks(self.blocks, x)


class ConvNext(nnx.Module):
    """Trunk from pixels to a map of features."""

    def __init__(self, cfg: ConvNextConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.float32):
        self.cfg = cfg
        self.stem = PatchConv(STEM, 3, cfg.dims[0], rngs, dtype)
        self.stem_norm = LayerNorm(cfg.dims[0], eps=cfg.norm_eps, dtype=dtype)
        inputs = (0, *cfg.dims[:-1])
        for i, (before, dim, depth) in enumerate(zip(inputs, cfg.dims, cfg.depths, strict=True)):
            setattr(self, f"stage{i}", Stage(before, dim, depth, cfg.norm_eps, rngs, dtype))

    def __call__(self, crops: jax.Array) -> jax.Array:
        """crops [B, 3, S, S] -> [B, S / stride, S / stride, dims[-1]]."""
        x = crops.transpose(0, 2, 3, 1).astype(self.stem_norm.scale[...].dtype)
        x = self.stem_norm(self.stem(x))
        for i in range(len(self.cfg.dims)):
            x = getattr(self, f"stage{i}")(x)
        return x


# (name of timm, our name, layout of the weight) in a block; all with biases.
_BLOCK: tuple[tuple[str, str, Layout], ...] = (
    ("norm", "norm", "vector"),
    ("mlp.fc1", "mlp/fc1", "linear"),
    ("mlp.fc2", "mlp/fc2", "linear"),
)


def convnext_rules(prefix: str, cfg: ConvNextConfig) -> list[Rule]:
    """Key table of the trunk with timm's names.

    Args:
        prefix: up to and including the dot before ``stem``.
    """
    rules = [
        *_conv(f"{prefix}stem.0", "vision/stem", 3, cfg.dims[0], STEM),
        *pair(f"{prefix}stem.1", "vision/stem_norm", "vector"),
    ]
    for i, dim in enumerate(cfg.dims):
        key, ours = f"{prefix}stages.{i}.", f"vision/stage{i}/"
        if i:
            rules += pair(f"{key}downsample.0", f"{ours}norm", "vector")
            rules += _conv(f"{key}downsample.1", f"{ours}down", cfg.dims[i - 1], dim, STEP)
        key, ours = f"{key}blocks.{{l}}.", f"{ours}blocks/"
        kernel = (dim, 1, KERNEL, KERNEL)
        rules += [
            Rule(f"{key}gamma", f"{ours}gamma", "vector"),
            Rule(f"{key}conv_dw.weight", f"{ours}conv/kernel", "vector", shape=kernel),
            Rule(f"{key}conv_dw.bias", f"{ours}conv/bias", "vector"),
        ]
        for name, own, layout in _BLOCK:
            rules += pair(f"{key}{name}", f"{ours}{own}", layout)
    return rules


def _conv(key: str, ours: str, inputs: int, outputs: int, side: int) -> list[Rule]:
    weight, bias = pair(key, f"{ours}/linear", "linear")
    return [dataclasses.replace(weight, shape=(outputs, inputs, side, side)), bias]
