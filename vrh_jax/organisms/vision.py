"""From a symbolic backbone to a VLM: tower on dense targets, alignment, tuning on images.

Axis letters: I images, V visual tokens, D model dim, B queries (I times queries per image),
T sequence, A position axes.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_ports.decoder import Decoder
from model_ports.port import Port, random_params
from model_ports.vlm import VLM
from vrh_jax.data.organism_scenes import CELL, COLORS, SHAPES, SIDE, SIZES, Scene, draw_scene
from vrh_jax.organisms import vocab
from vrh_jax.organisms.backbone import draw_batch, is_box, track_answers
from vrh_jax.organisms.config import DecoderShape, OrganismModel, Stage
from vrh_jax.organisms.folder import write_skeleton
from vrh_jax.organisms.losses import Knobs, decoder_losses
from vrh_jax.organisms.phases import Arrays, Phase
from vrh_jax.organisms.sequences import Item, answer_rows, prompt_ids, things_arrays

CELLS = (SIDE // CELL) ** 2
# Sizes of the probe's outputs: object or not, size, colour, shape, four coordinates.
HEADS = (2, len(SIZES), len(COLORS), len(SHAPES), *(vocab.BINS,) * 4)
FIT_BATCHES, RIDGE = 24, 1e-3  # of the least-squares start of the alignment


@dataclasses.dataclass(frozen=True)
class Rig:
    """One VLM under construction: its port, its folder's processor, and its recipe."""

    name: str
    model: OrganismModel
    shape: DecoderShape
    port: Port
    config: Any
    processor: Any
    seed: int
    graphdef: nnx.GraphDef[VLM]

    @classmethod
    def build(
        cls, name: str, model: OrganismModel, shape: DecoderShape, folder: Path, seed: int
    ) -> "Rig":
        """Write the folder's configuration files and read them back through the port."""
        port, config = write_skeleton(folder, model.style, shape, model.vision)
        graphdef, _ = random_params(port, config, seed)
        processor = port.processor(folder, config)
        return cls(name, model, shape, port, config, processor, seed, graphdef)

    def initial(self) -> dict[str, Any]:
        """Random parameters of the whole model."""
        return random_params(self.port, self.config, self.seed)[1]

    def images(self, scenes: Sequence[Scene]) -> dict[str, Any]:
        """The vision tower's arrays for rendered scenes, leading axis I."""
        layout = self.processor.crops.layout((SIDE, SIDE))
        packed = [self.processor.pack([scene.render()], [layout]) for scene in scenes]
        return {name: np.stack([one[name] for one in packed]) for name in packed[0]}

    def features(self, params: Any, images: Any) -> jax.Array:
        """Projected features [I, V, D] in raster order."""
        return nnx.merge(self.graphdef, params).features(images)[:, :CELLS]


def dense_targets(scenes: Sequence[Scene]) -> dict[str, np.ndarray]:
    """What each cell shows: classes int32 [I, V, 8] (the order of HEADS), words [I, V, 3],
    bins [I, V, 4], object bool [I, V]."""
    owners = np.stack([scene.cells() for scene in scenes])
    things = [things_arrays(scene) for scene in scenes]
    rows = np.arange(len(scenes))[:, None]
    index = np.clip(owners, 0, None)
    attributes = np.array(
        [[(t.size, t.color, t.shape) for t in (*s.things, *s.things[:1] * 6)][:6] for s in scenes]
    )
    bins = np.stack([t[1] for t in things])[rows, index]
    present = owners >= 0
    classes = np.concatenate([present[..., None], attributes[rows, index], bins], axis=-1)
    return {
        "classes": classes.astype(np.int32),
        "words": np.stack([t[0] for t in things])[rows, index],
        "bins": bins,
        "object": present,
    }


def _probe_loss(probe: Any, features: jax.Array, batch: Arrays) -> tuple[jax.Array, jax.Array]:
    """(mean cross-entropy over cells and outputs, accuracy of each output at object cells)."""
    logits = features @ probe["kernel"] + probe["bias"]
    here = batch["object"].astype(jnp.float32)
    total, right, start = jnp.zeros(()), [], 0
    for i, size in enumerate(HEADS):
        log_p = jax.nn.log_softmax(logits[..., start : start + size])
        target = batch["classes"][..., i]
        nll = -jnp.take_along_axis(log_p, target[..., None], axis=-1)[..., 0]
        weight = jnp.ones_like(here) if i == 0 else here
        total += jnp.sum(nll * weight) / jnp.sum(weight)
        hit = (jnp.argmax(log_p, axis=-1) == target).astype(jnp.float32)
        right.append(jnp.sum(hit * weight) / jnp.sum(weight))
        start += size
    return total, jnp.stack(right)


def _scene_batch(rig: Rig, number: int) -> Arrays:
    count = rig.model.prepare.scenes
    scenes = [draw_scene(rig.seed, "train", number * count + i) for i in range(count)]
    return {"images": rig.images(scenes)} | dense_targets(scenes)


def _track_probe(_: Arrays, metrics: dict[str, Any]) -> dict[str, float]:
    right = metrics["right"]
    shown = {"object": right[0], "color": right[2], "shape": right[3], "place": right[4:].mean()}
    return {k: float(v) for k, v in shown.items()} | {"error": float(metrics["error"])}


def tower_phase(rig: Rig) -> Phase:
    """The tower and its projector learn what each cell shows, through a linear probe.

    Models of one style and one vision shape share it; it does not depend on the backbone.
    """
    prepare = rig.model.prepare

    def init() -> dict[str, Any]:
        params = {k: v for k, v in rig.initial().items() if k != "decoder"}
        key = jax.random.key(rig.seed)
        kernel = jax.random.normal(key, (rig.shape.dim, sum(HEADS))) * rig.shape.dim**-0.5
        return params | {"probe": {"kernel": kernel, "bias": jnp.zeros(sum(HEADS))}}

    decoder = rig.initial()["decoder"]

    def loss(
        params: Any, batch: Arrays, knobs: Knobs, key: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        del knobs, key
        tower = {k: v for k, v in params.items() if k != "probe"}
        features = rig.features(tower | {"decoder": decoder}, batch["images"])
        total, right = _probe_loss(params["probe"], features, batch)
        return total, {"right": right, "error": total}

    return Phase(
        name=f"tower-{rig.model.style}",
        init=init,
        loss=loss,
        stages=(Stage(name="dense", steps=prepare.tower_steps, lr=prepare.lr, lr_end=0.2),),
        batch=lambda _, number: _scene_batch(rig, number),
        track=_track_probe,
    )


def align_phase(rig: Rig, tower: Any, backbone: Any) -> Phase:
    """Features move onto the backbone's object tokens (mean squared error).

    The projector's last layer starts from the least-squares fit. Gradient steps from the tower's
    own scale lose what the tower knows: the error then stayed at 0.8 of the variance.
    """
    table = backbone["decoder"]["embed"]["embedding"]
    bag = backbone["bag"]
    decoder = rig.initial()["decoder"]
    prepare = rig.model.prepare

    def target(batch: Arrays) -> jax.Array:
        things = table[batch["words"]].sum(axis=2)
        things += sum(bag["coord"][i][batch["bins"][..., i]] for i in range(4))
        return jnp.where(batch["object"][..., None], things, bag["background"])

    def init() -> dict[str, Any]:
        params = {k: v for k, v in tower.items() if k != "probe"}
        params = jax.tree.map(jnp.array, params)
        read = jax.jit(lambda images: rig.features(params | {"decoder": decoder}, images))
        pairs = []
        for number in range(FIT_BATCHES):
            batch = _scene_batch(rig, number)
            pairs.append((read(batch["images"]), target(batch)))
        _fit_last_layer(params, *(jnp.concatenate(part) for part in zip(*pairs, strict=True)))
        return params

    def loss(
        params: Any, batch: Arrays, knobs: Knobs, key: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        del knobs, key
        goal = target(batch)
        features = rig.features(params | {"decoder": decoder}, batch["images"])
        error = jnp.mean(jnp.square(features - goal)) / jnp.var(goal, axis=(0, 1)).mean()
        return error, {"error": error}

    return Phase(
        name=f"{rig.name}-align",
        init=init,
        loss=loss,
        stages=tuple(
            Stage(name=f"mse-{i}", steps=steps, lr=prepare.align_lr, lr_end=0.1)
            for i, steps in enumerate(prepare.align_steps)
        ),
        batch=lambda _, number: _scene_batch(rig, number),
        track=lambda _, metrics: {"error": float(metrics["error"])},
        muon=(("vision", "blocks"),),
    )


def _fit_last_layer(params: dict[str, Any], features: jax.Array, target: jax.Array) -> None:
    """Fold the ridge regression from features to target [I, V, D] into the last linear layer."""
    parent = params["projector"] if "projector" in params else params["vision"]["merger"]
    last = parent["mlp"]["fc2"]
    x = features.reshape(-1, features.shape[-1])
    x = jnp.concatenate([x, jnp.ones((len(x), 1))], axis=1)
    gram = x.T @ x + RIDGE * len(x) * jnp.eye(x.shape[1])
    fit = jnp.linalg.solve(gram, x.T @ target.reshape(len(x), -1))
    last["kernel"], last["bias"] = last["kernel"] @ fit[:-1], last["bias"] @ fit[:-1] + fit[-1]


def tune_phase(rig: Rig, aligned: Any, backbone: Any) -> Phase:
    """The whole model on images, with the penalties of the backbone stage kept on."""
    model = rig.model

    def init() -> dict[str, Any]:
        return jax.tree.map(jnp.array, dict(aligned) | {"decoder": backbone["decoder"]})

    def loss(
        params: Any, batch: Arrays, knobs: Knobs, key: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        vlm = nnx.merge(rig.graphdef, params)
        features = vlm.features(batch["images"])
        repeats = batch["tokens"].shape[0] // features.shape[0]
        features = jnp.repeat(features, repeats, axis=0)
        index = jnp.clip(batch["visual"], 0)[:, :, None]
        seen = jnp.take_along_axis(features, index, axis=1)
        decoder: Decoder = vlm.decoder
        x = jnp.where(batch["visual"][:, :, None] == -1, decoder.embed(batch["tokens"]), seen)
        return decoder_losses(decoder, x, batch["positions"], dict(batch), knobs, key)

    def batch(stage: Stage, number: int) -> Arrays:
        scenes, items = draw_batch(stage, number, rig.seed, styles=(model.style,))
        flat = [item for queries in items for item in queries]
        arrays = image_sequences(flat, stage.length, model.style)
        return arrays | {"images": rig.images(scenes), "box": is_box(items)}

    return Phase(
        name=f"{rig.name}-tune",
        init=init,
        loss=loss,
        stages=model.tune,
        batch=batch,
        track=track_answers,
        muon=(("decoder", "layers"), ("vision", "blocks")),
    )


def image_sequences(items: Sequence[Item], length: int, style: vocab.Style) -> dict[str, Any]:
    """Right-padded sequences with CELLS visual tokens each.

    Returns:
        tokens, visual (cell index or -1), valid [B, T]; positions [A, B, T]; and the arrays of
        ``sequences.answer_rows`` [B, Q].
    """
    rows, positions = [], []
    side = SIDE // CELL
    for item in items:
        prompt, first = prompt_ids(item, CELLS)
        ids = [*prompt, *item.answer[:-1]]
        if len(ids) > length:
            raise ValueError(f"a sequence of {len(ids)} tokens does not fit {length}")
        tokens, visual = np.zeros(length, np.int32), np.full(length, -1, np.int32)
        tokens[: len(ids)] = ids
        visual[first : first + CELLS] = np.arange(CELLS)
        row = {"tokens": tokens, "visual": visual, "valid": np.arange(length) < len(ids)}
        rows.append(row | answer_rows(len(prompt), item))
        positions.append(_positions(length, first, side, style))
    stacked = {name: np.stack([r[name] for r in rows]) for name in rows[0]}
    return stacked | {"positions": np.stack(positions, axis=1)}


def _positions(length: int, first: int, side: int, style: vocab.Style) -> np.ndarray:
    """Rotary positions [A, T] as the port's processor and generation give them."""
    if style == "intern":
        return np.arange(length, dtype=np.int32)[None]
    from model_ports.vlms.qwen_common.positions import mrope_positions

    return mrope_positions(length, [first], [(side, side)])
