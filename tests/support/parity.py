"""Shared parts of the parity tests: wide tiny references, images, tokenizers, weight transfer.

torch and transformers are the references; nothing here is imported by the packages.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.numpy import load_file

from model_ports.convert.match import instances
from model_ports.convert.rules import Rule, own_rows, to_param


def widen(model: torch.nn.Module, seed: int, std: float = 0.2) -> torch.nn.Module:
    """Give a reference weights that expose mistakes, in fp32 and evaluation mode.

    Matrices get std ``std`` shrunk for wide inputs (so that activations stay in range), norms
    scatter around 1, every other vector around 0. Small default weights hide wrong positions; much
    wider ones make attention so sharp that single precision alone, ours or the reference's, is off
    by 1e-5 of a region's mass, on some processors and seeds and not on others.
    """
    generator = torch.Generator().manual_seed(seed)

    def noise(shape: torch.Size) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim > 1 and max(value.shape[:-1]) > 1:
                fan_in = int(np.prod(value.shape[1:]))
                gain = std * min(1.0, (64 / fan_in) ** 0.5)
                value.copy_(gain * noise(value.shape))
            else:
                norm = "norm" in name or name.endswith("ln_q.weight") or "lambda" in name
                centre = 1.0 if norm and not name.endswith("bias") else 0.0
                value.copy_(centre + 0.25 * noise(value.shape))
    return model.float().eval()


def saved_tensors(model: Any, folder: Path) -> dict[str, np.ndarray]:
    """Tensors as transformers writes them to disk (the published names of the family)."""
    model.save_pretrained(folder)
    tensors: dict[str, np.ndarray] = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def _leaf(tree: Any, path: str) -> Any:
    for part in path.split("/"):
        tree = tree[part]
    return tree


def load_params(
    abstract: Mapping[str, Any], rules: Sequence[Rule], tensors: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Fill an abstract parameter tree by rules; every tensor and every slice exactly once."""
    import jax

    params = jax.tree.map(lambda leaf: np.full(leaf.shape, np.nan, np.float32), dict(abstract))
    used: set[tuple[str, tuple[int, int] | None]] = set()

    def fill(rule: Rule, key: str, target: np.ndarray) -> None:
        assert (key, rule.rows) not in used, f"{key} {rule.rows} is used twice"
        assert np.isnan(target).all(), f"{rule.param} is filled twice by {key}"
        used.add((key, rule.rows))
        target[...] = to_param(own_rows(tensors[key], rule), rule.layout, target.shape)

    optional = [rule for rule in rules if rule.use != "fill"]
    for rule in rules:
        if rule in optional:
            continue
        leaf = _leaf(params, rule.param)
        for key, lead, _ in instances(rule, leaf.shape):
            fill(rule, key, leaf[lead])
    unfilled = [
        jax.tree_util.keystr(path)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if np.isnan(leaf).any()
    ]
    assert not unfilled, f"parameters without a rule: {unfilled}"
    unused = set(tensors) - {key for key, _ in used} - {rule.key for rule in optional}
    assert not unused, f"tensors without a rule: {sorted(unused)}"
    return params


def assert_close(actual: Any, expected: Any, tolerance: float, what: str = "value") -> None:
    """max |actual - expected| <= tolerance * max |expected|, shapes equal, all finite."""
    a = np.asarray(actual, np.float64)
    e = expected.detach().numpy() if isinstance(expected, torch.Tensor) else np.asarray(expected)
    e = e.astype(np.float64)
    assert a.shape == e.shape, f"{what}: shape {a.shape}, expected {e.shape}"
    assert np.isfinite(a).all(), f"{what} has values that are not finite"
    scale = max(np.abs(e).max(initial=0.0), 1e-12)
    worst = np.abs(a - e).max(initial=0.0) / scale
    assert worst <= tolerance, f"{what}: relative error {worst:.2e} > {tolerance:.0e}"


def assert_within(actual: Any, expected: Any, tolerance: float, what: str = "value") -> None:
    """max |actual - expected| <= tolerance, for fractions such as a region's mass."""
    a, e = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert a.shape == e.shape, f"{what}: shape {a.shape}, expected {e.shape}"
    worst = np.abs(a - e).max(initial=0.0)
    assert worst <= tolerance, f"{what}: error {worst:.2e} > {tolerance:.0e}"


def textured_image(width: int, height: int, seed: int) -> Image.Image:
    """RGB image with gradients, blobs and noise, so that no two patches are alike."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [
        127
        + 90 * np.sin(x * rng.uniform(0.02, 0.4) + y * rng.uniform(0.02, 0.4) + rng.uniform(0, 6))
        for _ in range(3)
    ]
    noise = rng.normal(0, 30, (height, width, 3))
    return Image.fromarray(np.clip(np.stack(waves, -1) + noise, 0, 255).astype(np.uint8))


@contextlib.contextmanager
def zeroed_heads(
    projections: Sequence[torch.nn.Module], heads: Sequence[tuple[int, int]], head_dim: int
) -> Iterator[None]:
    """Zero (layer, head) slices of the input of each layer's output projection.

    Args:
        projections: the o_proj module of every layer, in order.
    """
    handles = []
    for layer, module in enumerate(projections):
        drop = [head for at, head in heads if at == layer]

        def hook(_: torch.nn.Module, args: tuple[torch.Tensor], drop: Any = drop) -> Any:
            z = args[0].clone()
            for head in drop:
                z[..., head * head_dim : (head + 1) * head_dim] = 0
            return (z,)

        handles.append(module.register_forward_pre_hook(hook))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def save_tokenizer(
    folder: Path, special: Sequence[str], template: str, *, eos: str, pad: str, size: int = 320
) -> None:
    """Write a small byte-level BPE tokenizer with its chat template, as a checkpoint has it.

    ``special`` tokens get the ids right after the learned vocabulary, in order.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    corpus = ["Locate the red square, output its bbox coordinates using JSON format.", "a b c 0123"]
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens(list(special))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, pad_token=pad)
    fast.chat_template = template
    fast.save_pretrained(folder)
