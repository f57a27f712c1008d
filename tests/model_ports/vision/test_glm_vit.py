"""Parts of the GLM-4V vision tower against transformers, in fp32."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from support.parity import assert_close, load_params, widen
from transformers.models.glm4v.configuration_glm4v import Glm4vVisionConfig
from transformers.models.glm4v.modeling_glm4v import Glm4vVisionModel

from model_ports.images.window_patches import window_patches
from model_ports.vision.glm_vit import GlmVit, GlmVitConfig, glm_vit_rules

# (rows, columns) of patches, below and above the table's 5 x 5: one token, tall, wide.
GRIDS = ((8, 8), (6, 14), (2, 2), (10, 4), (2, 30), (24, 2))


@dataclasses.dataclass
class Tower:
    reference: Glm4vVisionModel
    port: GlmVit
    cfg: GlmVitConfig


def make(seed=0):
    cfg = GlmVitConfig(
        depth=3,
        dim=48,
        heads=3,
        out_dim=40,
        merger_dim=52,
        side=5,
        patch=14,
        temporal=2,
        merge=2,
        norm_eps=1e-5,
        rope_theta=10000.0,
    )
    config = Glm4vVisionConfig(
        depth=3, hidden_size=48, num_heads=3, out_hidden_size=40, intermediate_size=52,
        image_size=70, rms_norm_eps=1e-5,
    )  # fmt: skip
    reference = Glm4vVisionModel._from_config(config, attn_implementation="eager")
    widen(reference, seed)
    abstract = nnx.eval_shape(lambda: GlmVit(cfg, rngs=nnx.Rngs(0)))
    graphdef, state = nnx.split(abstract)
    tensors = {f"v.{k}": v.numpy() for k, v in reference.state_dict().items()}
    tree = {"vision": nnx.to_pure_dict(state)}
    params = load_params(tree, glm_vit_rules("v.", cfg), tensors)["vision"]
    return Tower(reference, nnx.merge(graphdef, params), cfg)


@pytest.fixture(scope="module")
def tower():
    return make()


def packed(grid, seed):
    rng = np.random.default_rng(seed)
    image = rng.normal(0, 1, (grid[0] * 14, grid[1] * 14, 3)).astype(np.float32)
    return window_patches(image, patch=14, temporal=2, merge=2, side=1)


def flat(part):
    """The reference's patches [P, 1176]: those of a token together, tokens in raster order."""
    return torch.tensor(part.patches.reshape(-1, 1176)[: int(part.valid.sum())])


def stack(parts, extra=0):
    most = max(len(p.valid) for p in parts) + extra
    return [
        np.stack([np.pad(a, [(0, most - len(a))] + [(0, 0)] * (a.ndim - 1)) for a in arrays])
        for arrays in ([getattr(p, name) for p in parts] for name in ("patches", "valid", "hw"))
    ]


def test_position_table(tower):
    """Patches in any order, with padding behind them."""
    grids = [*GRIDS, (5, 5), (3, 7)]
    most = max(rows * columns for rows, columns in grids) + 3
    hw = np.full((len(grids), most, 2), 99, np.int32)
    valid = np.zeros((len(grids), most), bool)
    expected = []
    for row, grid in enumerate(grids):
        count = grid[0] * grid[1]
        order = np.random.default_rng(row).permutation(count)
        hw[row, :count] = np.indices(grid).reshape(2, -1).T[order]
        valid[row, :count] = True
        with torch.no_grad():
            want = tower.reference.embeddings(
                torch.zeros(count, 48),
                torch.tensor([count]),
                torch.tensor([[1, *grid]]),
                *torch.tensor(hw[row, :count].T),
            )
        assert want.std() > 0.1
        expected.append(want.numpy())
    got = nnx.jit(lambda port, *a: port.position_embeddings(*a))(tower.port, hw, valid)
    for row, want in enumerate(expected):
        assert_close(got[row, : len(want)], want, 1e-5, f"positions of grid {grids[row]}")


def test_block(tower):
    part = packed((8, 8), 2)
    hw = torch.tensor(part.hw.reshape(-1, 2))
    x = np.random.default_rng(5).normal(0, 1, (len(hw), 48)).astype(np.float32)
    cos, sin = tower.reference.rotary_pos_emb(torch.tensor(x), hw)
    block = tower.reference.blocks[1]
    seqlens = torch.tensor([0, len(hw)])
    with torch.no_grad():
        want = block(torch.tensor(x), cu_seqlens=seqlens, position_embeddings=(cos, sin))
    graphdef, state = nnx.split(tower.port.blocks)
    ours = nnx.merge(graphdef, jax.tree.map(lambda p: p[1], state))
    half = cos.shape[-1] // 2
    tables = [t[None, :, :half].numpy() for t in (cos, sin)]
    got = nnx.jit(lambda block, *a, **k: block(*a, **k))(
        ours, x[None], *tables, valid=part.valid[None]
    )
    assert part.valid.all()
    assert_close(got[0], want, 1e-5, "block")


def test_downsample_and_merger(tower):
    x = np.random.default_rng(3).normal(0, 2, (1, 7, 4, 48)).astype(np.float32)
    with torch.no_grad():
        square = torch.tensor(x[0]).view(-1, 2, 2, 48).permute(0, 3, 1, 2)
        joined = tower.reference.downsample(square).view(-1, 40)
        want = tower.reference.merger(joined)
    ours = tower.port.downsample(jnp.asarray(x).swapaxes(2, 3))
    assert_close(ours[0], joined, 1e-5, "downsampled")
    assert_close(tower.port.merger(ours)[0], want, 1e-5, "merger")


@pytest.mark.parametrize("seed", [0, 3])
def test_tower_on_images_of_many_sizes(seed):
    tower = make(seed)
    parts = [packed(grid, number) for number, grid in enumerate(GRIDS)]
    patches = torch.cat([flat(part) for part in parts])
    tower.reference.double()
    with torch.no_grad():
        want = tower.reference(patches.double(), grid_thw=torch.tensor([[1, *g] for g in GRIDS]))
    got = np.asarray(nnx.jit(lambda port, *a: port(*a))(tower.port, *stack(parts, extra=3)))
    ours = np.concatenate([got[row][part.order] for row, part in enumerate(parts)])
    assert_close(ours, want.pooler_output, 1e-5, "features")
    assert want.pooler_output.std() > 0.2


def test_program_does_not_grow_with_depth(tower):
    def size(depth):
        cfg = dataclasses.replace(tower.cfg, depth=depth)
        graphdef, state = nnx.split(nnx.eval_shape(lambda: GlmVit(cfg, rngs=nnx.Rngs(0))))
        arrays = stack([packed((4, 4), 0)])
        traced = jax.make_jaxpr(lambda p, *a: nnx.merge(graphdef, p)(*a))(state, *arrays)
        return sum(1 for _ in str(traced).splitlines())

    assert size(2) == size(24)
