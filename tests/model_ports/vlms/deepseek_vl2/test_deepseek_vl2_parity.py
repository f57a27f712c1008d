"""What is particular to DeepSeek-VL2 as a whole; see test_every_port.py for the rest."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from support.deepseek import CANVASES, SIDE, DeepseekPair, views
from support.parity import assert_close
from support.vlm_checks import forward, make_samples

from model_ports.convert.plan import plan_folder
from model_ports.images.letterbox import VIEW_SEPARATOR
from model_ports.prompt import collate

# Wide, tall; two images that are cut; three that are not.
SPECS = (
    (((80, 60),), "Locate the red square", True),
    (((61, 130), (50, 50)), "What is left of it", False),
    (((60, 20), (90, 30), (31, 44)), "Compare 0123", True),
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return DeepseekPair.make(tmp_path_factory.mktemp("deepseek_vl2"))


@pytest.fixture(scope="module")
def samples(pair):
    return make_samples(pair, SPECS)


def test_features_and_separators(pair, samples):
    """Tower, joined patches, projector, newlines at row ends, one separator of views; zeros after
    the crops and the places of a prompt change nothing."""
    features = jax.jit(lambda params, arrays: nnx.merge(pair.graphdef, params).features(arrays))
    batch = collate([prompt for prompt, _ in samples])
    every = np.asarray(features(pair.params, batch.images))
    newline = pair.reference.image_newline.detach().numpy()
    for (prompt, images), got in zip(samples, every, strict=True):
        canvases = CANVASES if len(images) <= 2 else [[SIDE, SIDE]]
        with torch.no_grad():
            found = [pair.reference.features(views(one, canvases, SIDE)) for one in images]
        index = prompt.images["index"]
        assert_close(got[: len(index)], torch.cat(found), 1e-5, "features")
        ends = np.flatnonzero(index == -1)
        assert np.array_equal(got[ends], np.tile(newline, (len(ends), 1)))
        assert (index == VIEW_SEPARATOR).sum() == len(images)
        assert len(prompt.grid) == (index >= 0).sum()


def test_three_uncut_images_in_one_prompt(pair, samples):
    prompt, images = samples[2]
    logits = forward(pair.graphdef, pair.params, collate([prompt], multiple=1))
    assert_close(logits[0], pair.forward(prompt, images).logits[0], 1e-4, "logits")


def test_slices_of_experts_equal_slices_of_the_whole(pair):
    """A process reads the experts' shares that its devices hold."""
    rng = np.random.default_rng(0)
    targets = {p: t for p, t in plan_folder(pair.folder).targets.items() if "/experts/" in p}
    assert len(targets) == 3
    for path, target in targets.items():
        assert target.stacked == 2
        whole = target.read((slice(None),) * 4)
        for _ in range(5):
            index = tuple(slice(*sorted(rng.integers(0, n + 1, 2))) for n in whole.shape)
            assert np.array_equal(target.read(index), whole[index]), (path, index)


class Renormalised(nnx.Module):
    """Scores whose largest ``active`` sum to one."""

    def __init__(self, router, active):
        self.router, self.active = router, active

    def __call__(self, x):
        scores = self.router(x)
        return scores / jax.lax.top_k(scores, self.active)[0].sum(-1, keepdims=True)


def routed(**other):
    def edit(layers):
        layers.mlp.cfg = dataclasses.replace(layers.mlp.cfg, **other)

    return edit


def renormalise(layers):
    layers.mlp.router = Renormalised(layers.mlp.router, layers.mlp.cfg.active)


def without_shared(layers):
    layers.mlp.shared.down.kernel = nnx.Param(0 * layers.mlp.shared.down.kernel[...])


def plain_norm(layers):
    layers.attn.kv_norm.scale = nnx.Param(jnp.ones_like(layers.attn.kv_norm.scale[...]))


MISTAKES = {
    "fewer experts": routed(active=2),
    "more experts": routed(active=4),
    "no scale": routed(scale=1.0),
    "scores that sum to one": renormalise,
    "no shared experts": without_shared,
    "pairs of dims": lambda layers: setattr(layers.attn, "pairs", "halves"),
    "attention scale": lambda layers: setattr(layers.attn, "scale", 0.25),
    "no latent norm": plain_norm,
}


def test_every_rule_of_routing_and_latent_attention_matters(pair, samples):
    """On this checkpoint a mistake in any of them shows, so that parity tests them."""
    batch = collate([samples[0][0]])
    valid = np.asarray(batch.valid)

    def logits(edit):
        model = nnx.merge(pair.graphdef, pair.params)
        edit(model.decoder.layers)
        return np.asarray(forward(*nnx.split(model), batch))[valid]

    right = logits(lambda layers: None)
    for name, edit in MISTAKES.items():
        assert np.abs(logits(edit) - right).max() > 0.1, name
