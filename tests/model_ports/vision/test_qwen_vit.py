"""Parts of the Qwen2.5 vision tower against transformers, to 1e-5 in fp32."""

import copy
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from jax.extend.core import jaxprs_in_params
from support.parity import assert_close, load_params, widen
from support.sharded_tower import sharded
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VisionTransformerPretrainedModel,
)

from model_ports.images.window_patches import window_patches
from model_ports.nn import attention
from model_ports.vision.qwen_vit import QwenVit, QwenVitConfig, qwen_vit_rules
from model_ports.vision.rotary import vision_rope

# (rows, columns) of patches; with 2 x 2 tokens per window: many windows, cut edges, one token.
GRIDS = ((8, 8), (6, 14), (2, 2), (10, 4), (2, 30))


@dataclasses.dataclass
class Tower:
    reference: Qwen2_5_VisionTransformerPretrainedModel
    port: QwenVit
    cfg: QwenVitConfig


def make(seed=0, window=56, full_blocks=(1, 2)):
    cfg = QwenVitConfig(
        depth=4,
        dim=48,
        heads=3,
        mlp_dim=52,
        out_dim=40,
        patch=14,
        temporal=2,
        merge=2,
        window=window,
        full_blocks=full_blocks,
        rope_theta=10000.0,
    )
    config = Qwen2_5_VLVisionConfig(
        depth=4,
        hidden_size=48,
        num_heads=3,
        intermediate_size=52,
        out_hidden_size=40,
        window_size=window,
        fullatt_block_indexes=list(full_blocks),
    )
    reference = Qwen2_5_VisionTransformerPretrainedModel._from_config(
        config, attn_implementation="eager"
    )
    widen(reference, seed)
    abstract = nnx.eval_shape(lambda: QwenVit(cfg, rngs=nnx.Rngs(0)))
    graphdef, state = nnx.split(abstract)
    tensors = {f"visual.{k}": v.numpy() for k, v in reference.state_dict().items()}
    tree = {"vision": nnx.to_pure_dict(state)}
    params = load_params(tree, qwen_vit_rules("visual.", cfg), tensors)["vision"]
    return Tower(reference, nnx.merge(graphdef, params), cfg)


@pytest.fixture(scope="module")
def tower():
    return make()


def pixels(grid, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(0, 1, (grid[0] * 14, grid[1] * 14, 3)).astype(np.float32)


def reference_patches(image):
    """[P, 1176] in the reference's order (2 x 2 blocks together)."""
    rows, columns = image.shape[0] // 14, image.shape[1] // 14
    x = torch.tensor(image).permute(2, 0, 1)
    x = x.reshape(3, rows // 2, 2, 14, columns // 2, 2, 14).permute(1, 4, 2, 5, 0, 3, 6)
    x = x.unsqueeze(5).expand(*x.shape[:5], 2, 14, 14)
    return x.reshape(rows * columns, -1)


def windows(tower, image):
    return window_patches(image, patch=14, temporal=2, merge=2, side=tower.cfg.window_side)


@torch.no_grad()
def expected_features(tower, images):
    grid = torch.tensor([[1, i.shape[0] // 14, i.shape[1] // 14] for i in images])
    flat = torch.cat([reference_patches(i) for i in images])
    # In float64: over four layers of wide weights float32 rounding alone nears the tolerance.
    reference = copy.deepcopy(tower.reference).double()
    return reference(flat.double(), grid_thw=grid).pooler_output.numpy()


def stack(parts, extra_windows=0):
    most = max(len(p.valid) for p in parts) + extra_windows
    out = []
    for name in ("patches", "valid", "hw"):
        arrays = [getattr(p, name) for p in parts]
        out.append(
            np.stack([np.pad(a, [(0, most - len(a))] + [(0, 0)] * (a.ndim - 1)) for a in arrays])
        )
    return out


def block_weights(tower, index):
    graphdef, state = nnx.split(tower.port.blocks)
    return nnx.merge(graphdef, jax.tree.map(lambda p: p[index], state))


def test_rope_tables(tower):
    hw = np.stack(np.meshgrid(np.arange(40), np.arange(33), indexing="ij"), -1).reshape(-1, 2)
    cos, sin = vision_rope(jnp.asarray(hw), tower.cfg.rope_theta, tower.cfg.head_dim)
    want_cos, want_sin = tower.reference.rotary_pos_emb(torch.zeros(1), torch.tensor(hw))
    half = tower.cfg.head_dim // 2
    assert_close(cos, want_cos[:, :half], 1e-5, "cos")
    assert_close(sin, want_sin[:, :half], 1e-5, "sin")
    assert torch.equal(want_cos[:, :half], want_cos[:, half:])


def run_attention(tower, index, image, full):
    """(ours in raster block order, reference) of one block's attention on random activations."""
    packed = windows(tower, image)
    rows, columns = image.shape[0] // 14, image.shape[1] // 14
    rng = np.random.default_rng(5)
    raster = rng.normal(0, 1, (rows * columns, tower.cfg.dim)).astype(np.float32)
    slots = (packed.order[:, None] * 4 + np.arange(4)).reshape(-1)  # in 2 x 2 block order
    x = np.zeros((packed.valid.size, tower.cfg.dim), np.float32)
    x[slots] = raster
    cos, sin = vision_rope(
        jnp.asarray(packed.hw.reshape(1, -1, 2)), tower.cfg.rope_theta, tower.cfg.head_dim
    )
    got = block_weights(tower, index).attn(
        x[None], cos, sin, valid=packed.valid[None], full=jnp.asarray(full)
    )
    hw = packed.hw.reshape(-1, 2)[slots]
    tables = tower.reference.rotary_pos_emb(torch.zeros(1), torch.tensor(hw))
    if full:
        groups = [np.arange(len(slots))]
    else:
        side = 2 * tower.cfg.window_side
        window = hw[:, 0] // side * 100 + hw[:, 1] // side
        groups = [np.flatnonzero(window == w) for w in np.unique(window)]
    want = np.zeros_like(raster)
    with torch.no_grad():
        for group in groups:
            want[group] = tower.reference.blocks[index].attn(
                torch.tensor(raster[group]),
                cu_seqlens=torch.tensor([0, len(group)]),
                position_embeddings=tuple(t[group] for t in tables),
            )
    return np.asarray(got)[0, slots], want


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("full", [False, True])
def test_attention_within_windows_and_image(tower, grid, full):
    got, want = run_attention(tower, 1, pixels(grid, 1), full)
    assert_close(got, want, 1e-5, "attention")


def test_full_attention_in_query_blocks_is_the_same(tower, monkeypatch):
    monkeypatch.setattr(attention, "QUERY_BLOCK", 16)
    got, want = run_attention(tower, 2, pixels((10, 14), 2), full=True)
    assert_close(got, want, 1e-5, "attention in blocks")
    monkeypatch.setattr(attention, "QUERY_BLOCK", 512)
    monkeypatch.setattr(attention, "LOGITS_BUDGET", 1)  # blocks of 64
    got, want = run_attention(tower, 2, pixels((10, 14), 2), full=True)
    assert_close(got, want, 1e-5, "attention in blocks of 64")


def test_merger(tower):
    x = np.random.default_rng(3).normal(0, 2, (1, 24, tower.cfg.dim)).astype(np.float32)
    with torch.no_grad():
        want = tower.reference.merger(torch.tensor(x[0]))
    assert_close(tower.port.merger(x)[0], want, 1e-5, "merger")


@pytest.mark.parametrize(
    ("window", "full_blocks"), [(56, (1, 2)), (112, (3,)), (84, ()), (56, (0, 1, 2, 3))]
)
def test_tower_on_images_of_many_sizes(window, full_blocks):
    tower = make(seed=window, window=window, full_blocks=full_blocks)
    images = [pixels(grid, number) for number, grid in enumerate(GRIDS)]
    parts = [windows(tower, image) for image in images]
    want = expected_features(tower, images)
    got = np.asarray(tower.port(*stack(parts, extra_windows=3)))
    ours = np.concatenate([got[row][part.order] for row, part in enumerate(parts)])
    assert_close(ours, want, 1e-5, "features")
    assert want.std() > 0.2


def test_padding_by_windows_changes_nothing(tower):
    part = windows(tower, pixels((6, 10), 4))
    run = nnx.jit(lambda port, *arrays: port(*arrays))
    plain = np.asarray(run(tower.port, *stack([part])))[0][part.order]
    padded = np.asarray(run(tower.port, *stack([part], extra_windows=5)))[0][part.order]
    assert_close(padded, plain, 1e-6, "features")


def test_program_does_not_grow_with_depth(tower):
    def size(depth):
        cfg = dataclasses.replace(tower.cfg, depth=depth)
        graphdef, state = nnx.split(nnx.eval_shape(lambda: QwenVit(cfg, rngs=nnx.Rngs(0))))
        part = windows(tower, pixels((4, 4), 0))
        traced = jax.make_jaxpr(lambda p, *a: nnx.merge(graphdef, p)(*a))(state, *stack([part]))
        return sum(1 for _ in str(traced).splitlines())

    assert size(2) == size(16)


def largest(jaxpr):
    """Elements of the largest intermediate array, inner programs included."""
    sizes = [0]
    for equation in jaxpr.eqns:
        sizes += [int(np.prod(v.aval.shape)) for v in equation.outvars]
        sizes += [largest(inner) for inner in jaxprs_in_params(equation.params)]
    return max(sizes)


def test_large_images_never_hold_patches_by_patches(tower):
    """128 x 128 patches: the logits of one query block, not of all queries."""
    patches = 128 * 128
    shapes = [(1, patches // 16, 16, tower.cfg.patch_dim), (1, patches // 16, 16)]
    arrays = [
        jax.ShapeDtypeStruct(shapes[0], np.float32),
        jax.ShapeDtypeStruct(shapes[1], bool),
        jax.ShapeDtypeStruct((*shapes[1], 2), np.int32),
    ]
    graphdef, state = nnx.split(tower.port)
    traced = jax.make_jaxpr(lambda p, *a: nnx.merge(graphdef, p)(*a))(state, *arrays)
    assert largest(traced.jaxpr) == attention.QUERY_BLOCK * tower.cfg.heads * patches


@pytest.mark.multidevice
def test_sharded_over_data_and_heads_is_the_same():
    result = sharded("qwen2.5", 2, 4)
    assert result["error"] < 1e-5
    assert result["shard"] == [3, 64, 1, 16]
