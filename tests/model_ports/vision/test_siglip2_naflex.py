"""The NaFlex tower of SigLIP 2 against transformers' Siglip2VisionModel in float32."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from support.parity import assert_close, load_params, widen
from transformers import Siglip2VisionConfig, Siglip2VisionModel

from model_ports.configs import ConfigReader
from model_ports.errors import UserError
from model_ports.vision.siglip2_naflex import NaflexVit, naflex_rules, read_naflex

RAW = {
    "model_type": "siglip2_vision_model",
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_patches": 16,
    "layer_norm_eps": 1e-3,
}
# Rows and columns: smaller than the table of 4 x 4, larger, both, and equal.
GRIDS = ((2, 3), (9, 5), (1, 14), (4, 4), (17, 2))
PATCHES = max(rows * columns for rows, columns in GRIDS)


@pytest.fixture(scope="module")
def towers() -> Any:
    """(transformers' model, our graphdef, our parameters)."""
    hf = Siglip2VisionConfig(**RAW, patch_size=2)
    reference = widen(Siglip2VisionModel._from_config(hf, attn_implementation="eager"), seed=2)
    cfg = read_naflex(ConfigReader(RAW, "vision_config"), patch=2)
    abstract = nnx.eval_shape(lambda: NaflexVit(cfg, rngs=nnx.Rngs(0)))
    graphdef, state = nnx.split(abstract)
    tensors = {f"v.{name}": value.numpy() for name, value in reference.state_dict().items()}
    params = load_params({"vision": nnx.to_pure_dict(state)}, naflex_rules("v.", cfg), tensors)
    return reference, graphdef, params["vision"]


@pytest.fixture(scope="module")
def inputs() -> Any:
    """(patches [X, P, C], grids [X, 2]); padding holds noise, which must not matter."""
    rng = np.random.default_rng(1)
    return rng.normal(0, 1, (len(GRIDS), PATCHES, 12)).astype(np.float32), np.array(GRIDS)


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_features_of_each_block(towers: Any, inputs: Any, blocks: int) -> None:
    (reference, graphdef, params), (patches, grids) = towers, inputs
    counts = grids.prod(1)
    valid = np.arange(PATCHES) < counts[:, None]
    with torch.no_grad():
        out = reference(
            torch.tensor(patches),
            pixel_attention_mask=torch.tensor(valid).long(),
            spatial_shapes=torch.tensor(grids),
            output_hidden_states=True,
        )
    run = jax.jit(lambda p, *a: nnx.merge(graphdef, p).features(*a, blocks=blocks))
    got = run(params, patches, *grids.T)
    assert np.isfinite(got).all()
    for row, count in enumerate(counts):
        assert_close(got[row, :count], out.hidden_states[blocks][row, :count], 1e-5, GRIDS[row])


def test_an_image_alone_and_unpadded_is_the_same(towers: Any, inputs: Any) -> None:
    (_, graphdef, params), (patches, grids) = towers, inputs
    run = jax.jit(lambda p, *a: nnx.merge(graphdef, p).features(*a, blocks=2))
    together = run(params, patches, *grids.T)
    alone = run(params, patches[:1, :6], *grids[:1].T)
    assert_close(together[:1, :6], alone, 1e-5)
    empty = run(params, np.zeros_like(patches[:1]), np.zeros(1, int), np.zeros(1, int))
    assert np.isfinite(empty).all()  # an image that is padding


def resized(table: torch.Tensor, grid: tuple[int, int], *, antialias: bool) -> torch.Tensor:
    """table [R, C, D] -> [rows * columns, D] by torch.

    On the CPU torch 2.13 has a fault where the result has one column: it repeats one row's value.
    A single column is therefore made as a single row.
    """
    if grid[1] == 1 < grid[0]:
        return resized(table.swapaxes(0, 1), grid[::-1], antialias=antialias)
    channels = table.permute(2, 0, 1)[None]
    out = torch.nn.functional.interpolate(
        channels, size=grid, mode="bilinear", align_corners=False, antialias=antialias
    )
    return out[0].flatten(1).T


@pytest.mark.parametrize("grid", [*GRIDS, (30, 40), (3, 3), (45, 80), (10, 1), (2, 1), (1, 1)])
def test_position_table_resized_with_antialias(towers: Any, grid: Any) -> None:
    reference, graphdef, params = towers
    rows, columns = grid
    table = reference.embeddings.position_embedding.weight.detach().reshape(4, 4, -1)
    want, plain = (resized(table, grid, antialias=antialias) for antialias in (True, False))
    tower = nnx.merge(graphdef, jax.tree.map(jnp.asarray, params))
    count = rows * columns
    got = tower.position_embeddings(jnp.array([rows]), jnp.array([columns]), count + 3)
    assert np.isfinite(got).all()
    assert_close(got[0, :count], want, 1e-5, "positions")
    assert ((want - plain).abs().max() > 1e-2) == (min(grid) < 4)  # where antialias matters


def test_head_without_weights_is_left_out() -> None:
    cfg = read_naflex(ConfigReader(RAW | {"vision_use_head": False}), patch=2)
    assert not cfg.pooling
    assert not any("head" in rule.key for rule in naflex_rules("v.", cfg))
    assert NaflexVit(cfg, rngs=nnx.Rngs(0)).head is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_patches": 15}, "num_patches"),
        ({"num_attention_heads": 5}, "5 heads"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"num_channels": 1}, "num_channels"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"image_size": 224}, "image_size"),
        ({"model_type": "siglip_vision_model"}, "siglip_vision_model"),
    ],
)
def test_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        read_naflex(ConfigReader(RAW | change), patch=2)
