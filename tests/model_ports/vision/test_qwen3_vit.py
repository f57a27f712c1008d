"""Parts of the Qwen3-VL vision tower against transformers, to 1e-5 in fp32."""

import copy
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from support.parity import assert_close, load_params, widen
from support.sharded_tower import sharded
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from model_ports.images.window_patches import window_patches
from model_ports.vision.qwen3_vit import Qwen3Vit, Qwen3VitConfig, qwen3_vit_rules
from model_ports.vision.rotary import vision_rope

# (rows, columns) of patches: smaller and larger than the table of 7 x 7, cut, one token, wide.
GRIDS = ((8, 8), (6, 14), (2, 2), (24, 4), (2, 30))
CFG = Qwen3VitConfig(
    depth=5,
    dim=48,
    heads=3,
    mlp_dim=52,
    out_dim=40,
    side=7,
    patch=16,
    temporal=2,
    merge=2,
    deepstack=(0, 2, 3),
    rope_theta=10000.0,
)


@dataclasses.dataclass
class Tower:
    reference: Qwen3VLVisionModel
    port: Qwen3Vit


def make(cfg, seed):
    config = Qwen3VLVisionConfig(
        depth=cfg.depth,
        hidden_size=cfg.dim,
        num_heads=cfg.heads,
        intermediate_size=cfg.mlp_dim,
        out_hidden_size=cfg.out_dim,
        num_position_embeddings=cfg.side**2,
        deepstack_visual_indexes=list(cfg.deepstack),
    )
    reference = Qwen3VLVisionModel._from_config(config, attn_implementation="eager")
    widen(reference, seed)
    graphdef, state = nnx.split(nnx.eval_shape(lambda: Qwen3Vit(cfg, rngs=nnx.Rngs(0))))
    tensors = {f"model.visual.{k}": v.numpy() for k, v in reference.state_dict().items()}
    tree = {"vision": nnx.to_pure_dict(state)}
    params = load_params(tree, qwen3_vit_rules("model.visual.", cfg), tensors)["vision"]
    return Tower(reference, nnx.merge(graphdef, params))


@pytest.fixture(scope="module")
def tower():
    return make(CFG, 0)


def packed(grid, seed):
    rng = np.random.default_rng(seed)
    image = rng.normal(0, 1, (grid[0] * 16, grid[1] * 16, 3)).astype(np.float32)
    return window_patches(image, patch=16, temporal=2, merge=2, side=1)


def stack(parts, extra=0):
    most = max(len(p.valid) for p in parts) + extra
    return [
        np.stack(
            [
                np.pad(a, [(0, most - len(a))] + [(0, 0)] * (a.ndim - 1))
                for a in (getattr(p, name) for p in parts)
            ]
        )
        for name in ("patches", "valid", "hw")
    ]


def own(part, array):
    """The rows of an image's visual tokens, which are in raster order."""
    count = len(part.order)
    assert np.array_equal(part.order, np.arange(count))
    return array[:count]


def taken(tree, index):
    graphdef, state = nnx.split(tree)
    return nnx.merge(graphdef, jax.tree.map(lambda p: p[index], state))


@pytest.mark.parametrize("grid", [*GRIDS, (7, 7), (2, 100)])
def test_position_table_is_resampled_with_aligned_corners(tower, grid):
    """Against torch's interpolate, for a patch at every place."""
    hw = np.indices(grid).reshape(2, -1).T
    got = tower.port.position_embeddings(jnp.asarray(hw[None]))[0]
    table = tower.reference.pos_embed.weight.detach().T.reshape(1, 48, 7, 7)
    want = torch.nn.functional.interpolate(table, grid, mode="bilinear", align_corners=True)
    assert_close(got, want[0].reshape(48, -1).T, 1e-5, "positions")
    corners = got[np.array([0, grid[1] - 1, -grid[1], -1])]
    flat = tower.reference.pos_embed.weight.detach()
    assert_close(corners, flat[[0, 6, 42, 48]], 1e-5, "corners")


def test_positions_of_padding_change_nothing(tower):
    hw = np.indices((4, 6)).reshape(2, -1).T
    more = np.concatenate([hw, np.zeros((9, 2), hw.dtype)])
    both = [np.asarray(tower.port.position_embeddings(jnp.asarray(a[None])))[0] for a in (hw, more)]
    assert np.array_equal(both[0], both[1][: len(hw)])


def test_patch_embedding(tower):
    part = packed((4, 6), 1)
    patches = own(part, part.patches).reshape(-1, CFG.patch_dim)
    with torch.no_grad():
        want = tower.reference.patch_embed(torch.tensor(patches))
    assert_close(tower.port.patch_embed(patches), want, 1e-5, "patch embedding")


def test_block_and_rotation(tower):
    part = packed((6, 8), 2)
    hw = own(part, part.hw).reshape(-1, 2)
    x = np.random.default_rng(3).normal(0, 1, (len(hw), CFG.dim)).astype(np.float32)
    tables = tower.reference.rotary_pos_emb(torch.zeros(1), torch.tensor(hw))
    cos, sin = vision_rope(jnp.asarray(hw[None]), CFG.rope_theta, CFG.head_dim)
    half = CFG.head_dim // 2
    assert_close(cos[0], tables[0][:, :half], 1e-5, "cos")
    assert_close(sin[0], tables[1][:, :half], 1e-5, "sin")
    with torch.no_grad():
        want = tower.reference.blocks[1](
            torch.tensor(x),
            cu_seqlens=torch.tensor([0, len(hw)]),
            position_embeddings=tables,
        )
    valid = np.ones((1, len(hw) // 4, 4), bool)
    assert_close(
        taken(tower.port.blocks, 1)(x[None], cos, sin, valid=valid)[0], want, 1e-5, "block"
    )


@pytest.mark.parametrize("which", ["main", 0, 2])
def test_mergers_norm_before_and_after_joining(tower, which):
    x = np.random.default_rng(4).normal(1, 2, (24, CFG.dim)).astype(np.float32)
    x[::3] *= 4  # patches of unlike scale: the order of norm and view shows
    if which == "main":
        port, reference = tower.port.merger, tower.reference.merger
    else:
        port = taken(tower.port.deepstack, which)
        reference = tower.reference.deepstack_merger_list[which]
    with torch.no_grad():
        want = reference(torch.tensor(x))
    assert_close(port(x[None])[0], want, 1e-5, "merger")


@pytest.mark.parametrize("deepstack", [(0, 2, 3), (4,), (0, 1, 2, 3, 4), ()])
def test_tower_on_images_of_many_sizes(deepstack):
    tower = make(dataclasses.replace(CFG, deepstack=deepstack), seed=len(deepstack))
    parts = [packed(grid, number) for number, grid in enumerate(GRIDS)]
    flat = np.concatenate([own(p, p.patches).reshape(-1, CFG.patch_dim) for p in parts])
    grid = torch.tensor([[1, *g] for g in GRIDS])
    # In float64: over five blocks of wide weights float32 rounding alone nears the tolerance.
    reference = copy.deepcopy(tower.reference).double()
    with torch.no_grad():
        want = reference(torch.tensor(flat).double(), grid_thw=grid)
    run = nnx.jit(lambda port, *arrays: port(*arrays))
    tokens, layers = run(tower.port, *stack(parts, extra=3))

    def joined(features):
        return np.concatenate([own(p, np.asarray(f)) for p, f in zip(parts, features, strict=True)])

    assert_close(joined(tokens), want.pooler_output, 1e-5, "tokens")
    assert len(want.deepstack_features) == len(deepstack)
    if not deepstack:
        assert layers is None
        return
    for index, expected in enumerate(want.deepstack_features):
        assert_close(joined(layers[index]), expected, 1e-5, f"features {index}")
        assert expected.std() > 0.2


def test_program_does_not_grow_with_depth():
    def size(depth):
        cfg = dataclasses.replace(CFG, depth=depth, deepstack=(0, depth // 2, depth - 1))
        graphdef, state = nnx.split(nnx.eval_shape(lambda: Qwen3Vit(cfg, rngs=nnx.Rngs(0))))
        arrays = stack([packed((4, 4), 0)])
        traced = jax.make_jaxpr(lambda p, *a: nnx.merge(graphdef, p)(*a))(state, *arrays)
        return sum(" = " in line for line in str(traced).splitlines())

    assert abs(size(27) - size(4)) <= 0.05 * size(4)


@pytest.mark.multidevice
def test_sharded_over_data_and_heads_is_the_same():
    result = sharded("qwen3", 2, 4)
    assert result["error"] < 1e-5
    assert result["shard"] == [3, 64, 1, 16]
