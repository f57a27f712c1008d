"""The symbolic backbone stage: a decoder learns to refer and to answer on object tokens."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_ports.block import DecoderConfig
from model_ports.decoder import Decoder
from model_ports.nn.rope import Rope
from vrh_jax.data.organism_scenes import GRID, draw_scene
from vrh_jax.organisms import vocab
from vrh_jax.organisms.config import Backbone, DecoderShape, Stage
from vrh_jax.organisms.losses import Knobs, decoder_losses, symbolic_inputs
from vrh_jax.organisms.phases import Arrays, Phase
from vrh_jax.organisms.sequences import Item, draw_items, symbolic_batch

EMBED_STD = 0.08
OWN_SHARE = 0.3  # of a coordinate token's start that is its own
BRANCH_SCALE = 0.7  # of the initial output projections of attention and MLP
MAX_POSITIONS = 4096


def decoder_config(shape: DecoderShape, sections: tuple[int, ...] | None = None) -> DecoderConfig:
    """The decoder of a backbone (1-D positions), or of a VLM with M-RoPE sections."""
    return DecoderConfig(
        vocab=vocab.build_tokenizer().get_vocab_size(),
        layers=shape.layers,
        dim=shape.dim,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        mlp_dim=shape.mlp_dim,
        norm_eps=1e-6,
        rope=Rope(theta=shape.rope_theta, sections=sections, max_positions=MAX_POSITIONS),
        qkv_bias=True,
        tied=True,
    )


def init_backbone(shape: DecoderShape, seed: int) -> tuple[nnx.GraphDef[Decoder], dict[str, Any]]:
    """(graphdef of the decoder, {"decoder": ..., "bag": object-token tables}).

    An object token is a sum of word embeddings. Coordinates get the same start: the token that
    states a coordinate begins near the bag's vector for it, plus a vector of its role (x0, y0,
    x1 or y1), so that "look" and "copy" need not be learned anew for each of 200 tokens.
    """
    decoder = Decoder(decoder_config(shape), rngs=nnx.Rngs(seed))
    graphdef, state = nnx.split(decoder)
    params = nnx.to_pure_dict(state)
    key_words, key_places, key_roles = jax.random.split(jax.random.key(seed + 1), 3)
    words = params["embed"]["embedding"].shape
    embedding = EMBED_STD * jax.random.normal(key_words, words)
    places = EMBED_STD * jax.random.normal(key_places, (4, vocab.BINS, shape.dim))
    roles = EMBED_STD * jax.random.normal(key_roles, (4, shape.dim))
    for style in vocab.STYLES:
        for place in range(vocab.BINS):
            tokens = vocab.box_tokens(style, (place * GRID,) * 4)
            ids = jnp.array([vocab.token(t) for t in tokens])
            own = OWN_SHARE * embedding[ids]
            embedding = embedding.at[ids].set(own + roles + places[:, place])
    params["embed"]["embedding"] = embedding
    for branch, last in (("attn", "o"), ("mlp", "down")):
        params["layers"][branch][last]["kernel"] *= BRANCH_SCALE
    bag = {
        "coord": places,
        "background": jnp.zeros((shape.dim,)),
    }
    return graphdef, {"decoder": params, "bag": bag}


def draw_batch(
    stage: Stage, number: int, seed: int, *, styles: tuple[vocab.Style, ...] = vocab.STYLES
) -> tuple[list[Any], list[list[Item]]]:
    """(scenes, queries of each scene) of a training step; a pure function of its arguments."""
    rng = np.random.default_rng((seed, 1, number))
    first = number * stage.scenes
    scenes = [draw_scene(seed, "train", first + i, stage.counts) for i in range(stage.scenes)]
    items = [
        draw_items(
            scene,
            rng,
            stage.per_scene,
            simple=stage.simple,
            short=stage.short,
            weight=stage.question_weight,
            boxes=stage.boxes,
            kinds=stage.kinds,
            styles=styles,
        )
        for scene in scenes
    ]
    return scenes, items


def is_box(items: list[list[Item]]) -> np.ndarray:
    """bool [B]."""
    return np.array([item.query.kind == "box" for queries in items for item in queries])


def track_answers(batch: Arrays, metrics: dict[str, Any]) -> dict[str, float]:
    """Accuracy of the first and of all coordinates, of questions, and the visual mass."""
    counted = batch["weights"] >= 1
    right = metrics["right"] > 0
    first = np.take_along_axis(right, counted.argmax(axis=1)[:, None], axis=1)[:, 0]
    whole = np.all(right | ~counted, axis=1)
    box = batch["box"]
    mass = metrics["mass"]
    return {
        "first": float(first[box].mean()) if box.any() else 0.0,
        "box": float(whole[box].mean()) if box.any() else 0.0,
        "question": float(first[~box].mean()) if (~box).any() else 0.0,
        "mass": float(mass.mean()),
        "heads": float((mass > 0.05).sum()),
        "wrapper": float(metrics["wrapper"]),
    }


def backbone_phase(name: str, shape: DecoderShape, backbone: Backbone) -> Phase:
    """Training of one symbolic backbone on both answer styles."""
    graphdef, _ = init_backbone(shape, backbone.seed)

    def loss(
        params: Any, batch: Arrays, knobs: Knobs, key: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        decoder = nnx.merge(graphdef, params["decoder"])
        key_noise, key_heads = jax.random.split(key)
        x, positions = symbolic_inputs(decoder, params["bag"], dict(batch), knobs.noise, key_noise)
        return decoder_losses(decoder, x, positions, dict(batch), knobs, key_heads)

    def batch(stage: Stage, number: int) -> Arrays:
        scenes, items = draw_batch(stage, number, backbone.seed)
        arrays = symbolic_batch(scenes, items, stage.length, cells=stage.cells)
        return arrays | {"box": is_box(items)}

    return Phase(
        name=name,
        init=lambda: init_backbone(shape, backbone.seed)[1],
        loss=loss,
        stages=backbone.stages,
        batch=batch,
        track=track_answers,
    )
