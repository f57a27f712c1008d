"""Compare the logits of a converted checkpoint with those of transformers, in float32."""

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_ports.convert.load import Converted, open_converted
from model_ports.errors import UserError
from model_ports.port import Port
from model_ports.prompt import Prompt, collate
from model_ports.vlm import VLM, Batch

TOLERANCE = 1e-4
# Up to this many parameters the reference is also asked in float64 what float32 itself costs.
_SMALL = 2 * 10**8
_ROWS, _LENGTH = 2, 24


def compare_logits(converted: Path, source: Path, port: Port | None = None) -> dict[str, Any]:
    """Relative error (largest difference over largest logit) on random tokens and an image.

    Returns:
        ``compared``; if so ``ok``, ``tolerance``, ``text`` and ``image`` (a number, or why that
        part was not compared), and ``rounding``: the error of transformers' own float32 in the
        parts that exceed the tolerance, four times of which are no fault of the conversion
        (deep models with wide random weights); else ``why``.
    """
    if importlib.util.find_spec("torch") is None:
        return {"compared": False, "why": "torch is not installed"}
    opened = open_converted(converted, port)
    why = _cannot(opened)
    if why:
        return {"compared": False, "why": why}
    reference = _reference(opened, source)
    model = nnx.merge(opened.graphdef, opened.params("float32", None))
    cases: dict[str, tuple[Batch, dict[str, np.ndarray]] | str] = {
        "text": _text_case(opened),
        "image": "not compared: this is a text model",
    }
    if opened.port.box is not None:
        cases["image"] = _image_case(opened, reference, source)
    result: dict[str, Any] = {"compared": True, "tolerance": TOLERANCE, "ok": True}
    for part, case in cases.items():
        if isinstance(case, str):
            result[part] = case
            continue
        ours, theirs = _ours(model, case[0]), _theirs(reference, case[1])
        result[part] = error = _error(ours, theirs)
        if error > TOLERANCE and _size(opened) <= _SMALL:
            exact = _theirs(reference.double(), case[1])
            reference.float()
            result.setdefault("rounding", {})[part] = rounding = _error(theirs, exact)
            error -= 4 * rounding
        result["ok"] &= bool(error <= TOLERANCE)
    return result


def _size(opened: Converted) -> int:
    return sum(int(np.prod(shape)) for shape, _ in opened.stored.values())


def _cannot(opened: Converted) -> str:
    """Why transformers cannot be asked; empty if it can."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = opened.raw_config.get("model_type")
    if kind not in CONFIG_MAPPING:
        return (
            f"transformers has no model of its own for {kind!r} (the checkpoint brings code, "
            "which is never run)"
        )
    need, free = 2.2 * 4 * _size(opened) + 2**30, _free_memory()
    if need > free:
        return (
            f"two copies in float32 need {need / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB is free"
        )
    return ""


def _free_memory() -> float:
    """Bytes that can be had without swapping; unlimited where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return float("inf")
    fields = dict(line.split(":", 1) for line in lines)
    return 1024.0 * float(fields["MemAvailable"].split()[0])


def _reference(opened: Converted, source: Path) -> Any:
    """The source in transformers: float32, after the cast that the conversion recorded."""
    import torch
    import transformers

    auto = (
        transformers.AutoModelForCausalLM
        if opened.port.box is None
        else transformers.AutoModelForImageTextToText
    )
    model = auto.from_pretrained(
        str(source),
        dtype=torch.float32,
        attn_implementation="eager",
        trust_remote_code=False,
        local_files_only=True,
        use_safetensors=True,
    ).eval()
    recorded = opened.manifest["dtype"]
    if recorded:
        with torch.no_grad():
            for value in model.parameters():
                value.copy_(value.to(getattr(torch, recorded)).float())
    return model


def _text_case(opened: Converted) -> tuple[Batch, dict[str, np.ndarray]]:
    """The same random tokens for both."""
    special = set(_token_ids(opened.raw_config))
    plain = np.array([i for i in range(opened.config.decoder.vocab) if i not in special])
    rng = np.random.default_rng(0)
    tokens = rng.choice(plain, (_ROWS, _LENGTH)).astype(np.int32)
    axes = 3 if opened.config.decoder.rope.sections else 1
    batch = Batch(
        tokens=jnp.asarray(tokens),
        valid=jnp.ones(tokens.shape, bool),
        positions=jnp.broadcast_to(jnp.arange(_LENGTH), (axes, *tokens.shape)),
        visual_index=jnp.full(tokens.shape, -1),
        images={},
    )
    return batch, {"input_ids": tokens}


def _image_case(
    opened: Converted, reference: Any, source: Path
) -> tuple[Batch, dict[str, np.ndarray]] | str:
    """Our tokens and pixels against transformers with our tokens and its own pixels."""
    from PIL import Image

    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (90, 130, 3), np.uint8)).resize((260, 180))
    try:
        processor = opened.port.processor(opened.folder, opened.config)
        prompt = processor.prepare("Describe it.", [image])
        inputs = _image_inputs(source, image, prompt, reference)
    except (UserError, OSError, ValueError, ImportError, AttributeError, TypeError) as error:
        return f"not compared: {str(error).splitlines()[0]}"
    return jax.tree.map(jnp.asarray, collate([prompt], multiple=1)), inputs


def _image_inputs(
    source: Path, image: Any, prompt: Prompt, reference: Any
) -> dict[str, np.ndarray]:
    import inspect

    from transformers import AutoImageProcessor

    # torchvision, where it is installed, resizes a little differently.
    processor = AutoImageProcessor.from_pretrained(
        str(source), trust_remote_code=False, local_files_only=True, backend="pil"
    )
    # InternVL's composite processor sets this where the image processor's file does not.
    crop = {"crop_to_patches": True} if hasattr(processor, "crop_to_patches") else {}
    pixels = processor(images=[image], return_tensors="np", **crop)
    inputs = {
        "input_ids": prompt.tokens[None],
        "mm_token_type_ids": (prompt.visual_index >= 0).astype(np.int32)[None],
        **{name: np.asarray(value) for name, value in pixels.items()},
    }
    if prompt.prefix:  # PaliGemma: 0 within the prefix
        inputs["token_type_ids"] = (np.arange(len(prompt)) >= prompt.prefix).astype(np.int64)[None]
    known = inspect.signature(reference.forward).parameters
    return {name: value for name, value in inputs.items() if name in known}


def _ours(model: VLM, batch: Batch) -> np.ndarray:
    with jax.default_matmul_precision("highest"):
        hidden, _, _ = model.decoder(model.embed(batch))
        return np.asarray(model.decoder.logits(hidden))


def _theirs(reference: Any, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    import torch

    tensors = {name: torch.from_numpy(np.array(value)) for name, value in inputs.items()}
    tensors["input_ids"] = tensors["input_ids"].long()
    tensors = {
        name: value.to(reference.dtype) if value.is_floating_point() else value
        for name, value in tensors.items()
    }
    if hasattr(getattr(reference, "model", None), "rope_deltas"):
        reference.model.rope_deltas = None  # of an earlier call
    with torch.no_grad():
        out: np.ndarray = reference(**tensors, use_cache=False).logits.double().numpy()
    return out


def _error(ours: np.ndarray, theirs: np.ndarray) -> float:
    scale = max(float(np.abs(theirs).max()), 1e-12)
    return float(np.abs(ours.astype(np.float64) - theirs).max() / scale)


def _token_ids(config: Mapping[str, Any]) -> Iterator[int]:
    """Every id that a config names, for instance of image placeholders."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _token_ids(value)
        elif name.endswith("token_id"):
            yield from [value] if isinstance(value, int) else value or []
