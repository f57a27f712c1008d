"""Key tables of InternVL files.

remote: the original repositories (fused qkv, ``mlp1``). hf_old: what transformers writes to
disk (``language_model.model.``, ``vision_tower.``). hf_new: transformers' names in memory,
which some published files use (``model.language_model.``, ``lm_head``).
"""

from collections.abc import Mapping, Sequence

from model_ports.backbones.llama_like import llama_like_rules
from model_ports.convert.rules import Layout, Rule, fused, pair
from model_ports.vlms.internvl.config import BACKBONES, InternVLConfig

# (published suffix, transformers suffix, our name, layout of the weight); all with biases.
_BLOCK: tuple[tuple[str, str, str, Layout], ...] = (
    ("attn.proj", "attention.projection_layer", "attn/o", "linear"),
    ("mlp.fc1", "mlp.fc1", "mlp/fc1", "linear"),
    ("mlp.fc2", "mlp.fc2", "mlp/fc2", "linear"),
    ("norm1", "layernorm_before", "norm1", "vector"),
    ("norm2", "layernorm_after", "norm2", "vector"),
)
_PROJECTOR: tuple[tuple[str, str, str, Layout], ...] = (
    ("mlp1.0", "layer_norm", "projector/norm", "vector"),
    ("mlp1.1", "linear_1", "projector/mlp/fc1", "linear"),
    ("mlp1.3", "linear_2", "projector/mlp/fc2", "linear"),
)


def layouts(config: InternVLConfig) -> Mapping[str, Sequence[Rule]]:
    """All layouts that files of this family come in, name -> rules."""
    return {
        "remote": _remote(config),
        "hf_old": _hf(config, root="", language="language_model.model.", head="language_model."),
        "hf_new": _hf(config, root="model.", language="model.language_model.", head=""),
    }


def _embeddings(config: InternVLConfig, cls: str, positions: str) -> list[Rule]:
    """Class token and position table, which files keep with a leading batch axis."""
    vision = config.vision
    table = (1, 1 + vision.side**2, vision.dim)
    return [
        Rule(cls, "vision/cls", "vector", shape=(1, 1, vision.dim)),
        Rule(positions, "vision/positions", "vector", shape=table),
    ]


def _patch(config: InternVLConfig, key: str) -> list[Rule]:
    """Patch embedding, a convolution in the files."""
    vision = config.vision
    kernel = (vision.dim, 3, vision.patch, vision.patch)
    return [
        Rule(f"{key}.weight", "vision/patch/kernel", "linear", shape=kernel),
        Rule(f"{key}.bias", "vision/patch/bias", "vector"),
    ]


def _remote(config: InternVLConfig) -> list[Rule]:
    backbone = BACKBONES[config.backbone]
    rules = backbone.rules(
        config.decoder, model="language_model.model.", head=f"language_model.{backbone.head}"
    )
    stem, block = "vision_model.embeddings.", "vision_model.encoder.layers.{l}."
    rules += _embeddings(config, f"{stem}class_embedding", f"{stem}position_embedding")
    rules += _patch(config, f"{stem}patch_embedding")
    rules += [
        Rule(f"{block}ls1", "vision/blocks/scale1", "vector"),
        Rule(f"{block}ls2", "vision/blocks/scale2", "vector"),
    ]
    bias = config.vision.qkv_bias
    rules += fused(f"{block}attn.qkv.", "vision/blocks/attn/", "qkv", bias=bias)
    for key, _, ours, layout in _BLOCK:
        rules += pair(f"{block}{key}", f"vision/blocks/{ours}", layout)
    for key, _, ours, layout in _PROJECTOR:
        rules += pair(key, ours, layout)
    return rules


def _hf(config: InternVLConfig, *, root: str, language: str, head: str) -> list[Rule]:
    rules = llama_like_rules(config.decoder, model=language, head=f"{head}lm_head.weight")
    stem, block = f"{root}vision_tower.embeddings.", f"{root}vision_tower.encoder.layer.{{l}}."
    rules += _embeddings(config, f"{stem}cls_token", f"{stem}position_embeddings")
    rules += _patch(config, f"{stem}patch_embeddings.projection")
    rules += [
        Rule(f"{block}lambda_1", "vision/blocks/scale1", "vector"),
        Rule(f"{block}lambda_2", "vision/blocks/scale2", "vector"),
    ]
    for part in "qkv":
        key, ours = f"{block}attention.{part}_proj", f"vision/blocks/attn/{part}"
        rules.append(Rule(f"{key}.weight", f"{ours}/kernel", "linear"))
        if config.vision.qkv_bias:
            rules.append(Rule(f"{key}.bias", f"{ours}/bias", "vector"))
    for _, key, ours, layout in _BLOCK:
        rules += pair(f"{block}{key}", f"vision/blocks/{ours}", layout)
    for _, key, ours, layout in _PROJECTOR:
        rules += pair(f"{root}multi_modal_projector.{key}", ours, layout)
    return rules
