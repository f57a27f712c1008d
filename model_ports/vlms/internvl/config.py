"""Strict readers for the two config.json formats of InternVL.

``internvl_chat`` is the remote-code format of the original repositories (``llm_config``,
``ps_version``, ``select_layer``, ...); ``internvl`` is the transformers one (``text_config``,
``vision_feature_layer``, ...). Both end in one ``InternVLConfig``.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

from model_ports.backbones.internlm2 import internlm2_rules, read_internlm2
from model_ports.backbones.llama import read_llama
from model_ports.backbones.llama_like import llama_like_rules
from model_ports.backbones.qwen2 import read_qwen2
from model_ports.backbones.qwen3 import read_qwen3
from model_ports.block import DecoderConfig
from model_ports.configs import ConfigReader, read_image_token
from model_ports.convert.rules import Rule
from model_ports.errors import UserError
from model_ports.images.tiling import Tiling
from model_ports.vision.intern_vit import InternViTConfig
from model_ports.vision.vit import read_vit

Format = Literal["remote", "hf"]


@dataclasses.dataclass(frozen=True)
class Backbone:
    """A language model that InternVL is built on.

    Attributes:
        read: takes the decoder's attributes out of its config (the caller finishes it).
        rules: key table of the original repositories' files, called with keywords ``model`` and
            ``head``. transformers' files have Llama's names for all of them.
        head: name of the output head in those files.
    """

    read: Callable[[ConfigReader, bool], DecoderConfig]
    rules: Callable[..., list[Rule]] = llama_like_rules
    head: str = "lm_head.weight"


# One row per language model, by its ``model_type``.
BACKBONES: Mapping[str, Backbone] = {
    # InternVL3
    "qwen2": Backbone(lambda reader, tied: read_qwen2(reader, sections=False, tied=tied)),
    # InternVL3.5
    "qwen3": Backbone(lambda reader, tied: read_qwen3(reader, sections=False, tied=tied)),
    # InternVL2.5, as published and as transformers converts it
    "internlm2": Backbone(
        lambda reader, tied: read_internlm2(reader, tied=tied), internlm2_rules, "output.weight"
    ),
    "llama": Backbone(lambda reader, tied: read_llama(reader, tied=tied)),
}

# What the training code of InternVL3.5 left in its configs.
_TRAINING = ("debug", "ep_size", "micro_forward", "skip_checkpoint", "use_deepep")


@dataclasses.dataclass(frozen=True)
class InternVLConfig:
    """What a checkpoint's config.json says about the model.

    Attributes:
        decoder: shape of the language model. ``decoder.tied`` is what the config says or
            transformers assumes; a file with a head of its own overrules it (``settle``).
        backbone: the language model's ``model_type``.
        vision: shape of the tower.
        shuffle: patches per visual token along one side (1 / ``downsample_ratio``).
        tiling: how images are cut, as far as config.json says (the transformers format keeps
            it in the image processor's file).
        file_format: which of the two config formats this was.
        image_token_id: id of ``<IMG_CONTEXT>``, where config.json names it.
    """

    decoder: DecoderConfig
    backbone: str
    vision: InternViTConfig
    shuffle: int
    tiling: Tiling
    file_format: Format
    image_token_id: int | None

    @property
    def projector_in(self) -> int:
        """Channels of a visual token before the projector."""
        return self.vision.dim * self.shuffle**2


def read_config(raw: Mapping[str, Any]) -> InternVLConfig:
    """Read either format; refuses what it does not know or cannot honour by name."""
    return _read_remote(raw) if raw.get("model_type") == "internvl_chat" else _read_hf(raw)


def settle(config: InternVLConfig, keys: Collection[str]) -> InternVLConfig:
    """A file that holds an output head of its own is not tied, whatever the config assumes.

    Args:
        keys: names of the file's tensors.
    """
    heads = {"lm_head.weight", BACKBONES[config.backbone].head}
    has_head = any(key.removeprefix("language_model.") in heads for key in keys)
    decoder = dataclasses.replace(config.decoder, tied=config.decoder.tied and not has_head)
    return dataclasses.replace(config, decoder=decoder)


def _read_remote(raw: Mapping[str, Any]) -> InternVLConfig:
    reader = ConfigReader(raw)
    if "ps_version" not in raw:
        raise UserError(
            "config.json lacks 'ps_version'. The published code then takes v1, whose pixel "
            "shuffle transposes the image; this port honours 'v2'"
        )
    reader.expect("ps_version", "v2")
    reader.expect("select_layer", -1)
    reader.expect("dynamic_image_size", True)
    reader.expect("pad2square", False)
    reader.expect("template", "internvl2_5")
    for name in ("image_fold", "system_message"):
        reader.expect(name, None)
    for name in ("use_backbone_lora", "use_llm_lora"):
        reader.expect(name, 0)
    vision = _read_remote_vision(reader.sub("vision_config"))
    reader.expect("force_image_size", vision.image_size, None)
    language = reader.sub("llm_config")
    # The published code ties by the language model's flag; the wrapper's has no effect.
    tied = language.take("tie_word_embeddings", bool, False)
    reader.ignore(["tie_word_embeddings"])
    backbone, decoder = _read_language(language, tied=tied)
    reader.expect("hidden_size", decoder.dim)
    shuffle = _read_shuffle(reader, vision)
    tiling = Tiling(
        side=vision.image_size,
        tokens=vision.side // shuffle,
        min_tiles=reader.take("min_dynamic_patch", int, 1),
        max_tiles=reader.take("max_dynamic_patch", int),
        thumbnail=reader.take("use_thumbnail", bool),
    )
    if not 1 <= tiling.min_tiles <= tiling.max_tiles:
        raise UserError(
            f"config.json: min_dynamic_patch = {tiling.min_tiles} and max_dynamic_patch = "
            f"{tiling.max_tiles}; expected 1 <= min_dynamic_patch <= max_dynamic_patch"
        )
    reader.finish()
    return InternVLConfig(
        decoder=decoder,
        backbone=backbone,
        vision=vision,
        shuffle=shuffle,
        tiling=tiling,
        file_format="remote",
        image_token_id=None,
    )


def _read_hf(raw: Mapping[str, Any]) -> InternVLConfig:
    reader = ConfigReader(raw)
    reader.expect("vision_feature_layer", -1)
    reader.expect("vision_feature_select_strategy", "default")
    reader.expect("projector_hidden_act", "gelu")
    vision = _read_hf_vision(reader.sub("vision_config"))
    # The wrapper's flag counts, not the language model's. It defaults to True, also for
    # files that hold a separate head (which transformers then keeps): see ``settle``.
    tied = reader.take("tie_word_embeddings", bool, True)
    backbone, decoder = _read_language(reader.sub("text_config"), tied=tied)
    shuffle = _read_shuffle(reader, vision)
    tokens = vision.side // shuffle
    reader.expect("image_seq_length", tokens**2)
    image_token = read_image_token(reader, decoder.vocab)
    tiling = Tiling(
        side=vision.image_size, tokens=tokens, min_tiles=1, max_tiles=12, thumbnail=True
    )
    reader.finish()
    return InternVLConfig(
        decoder=decoder,
        backbone=backbone,
        vision=vision,
        shuffle=shuffle,
        tiling=tiling,
        file_format="hf",
        image_token_id=image_token,
    )


def _read_language(reader: ConfigReader, *, tied: bool) -> tuple[str, DecoderConfig]:
    kind = reader.take("model_type", str)
    if kind not in BACKBONES:
        known = ", ".join(sorted(BACKBONES))
        raise UserError(
            f"{reader.where}: model_type {kind!r} is not supported; this port has the language "
            f"models: {known}"
        )
    reader.expect("moe_config", None)
    reader.ignore(_TRAINING)
    decoder = BACKBONES[kind].read(reader, tied)
    reader.finish()
    return kind, decoder


def _read_shuffle(reader: ConfigReader, vision: InternViTConfig) -> int:
    ratio = reader.take("downsample_ratio", float)
    factor = round(1 / ratio) if ratio > 0 else 0
    if factor < 1 or abs(factor * ratio - 1) > 1e-6 or vision.side % factor:
        raise UserError(
            f"{reader.where}: downsample_ratio = {ratio} does not divide {vision.side} x "
            f"{vision.side} patches into square blocks; expected 1/n with n dividing {vision.side}"
        )
    return factor


def _read_remote_vision(reader: ConfigReader) -> InternViTConfig:
    reader.expect("model_type", "intern_vit_6b")
    reader.expect("qk_normalization", False)
    reader.expect("use_moe", False)
    # The settings of a mixture of experts that ``use_moe`` turns off, and of training.
    reader.ignore(
        """capacity_factor eval_capacity_factor laux_allreduce moe_coeff_ratio
        moe_intermediate_size moe_output_scale noisy_gate_policy num_experts num_routed_experts
        num_shared_experts shared_expert_intermediate_size use_residual use_rts
        use_weighted_residual drop_path_rate dropout""".split()
    )
    return _finish_vision(
        reader,
        image_size=reader.take("image_size", int),
        patch=reader.take("patch_size", int),
        qkv_bias=reader.take("qkv_bias", bool),
    )


def _read_hf_vision(reader: ConfigReader) -> InternViTConfig:
    reader.expect("model_type", "internvl_vision")
    reader.expect("use_qk_norm", False)
    reader.expect("use_mask_token", False)
    reader.expect("use_absolute_position_embeddings", True)
    # False would add a final layer norm.
    reader.expect("use_mean_pooling", True)
    reader.ignore(
        ["hidden_dropout_prob", "projection_dropout", "layer_scale_init_value", "dropout"]
    )
    return _finish_vision(
        reader,
        image_size=_square(reader, "image_size"),
        patch=_square(reader, "patch_size"),
        qkv_bias=reader.take("attention_bias", bool, False),
    )


def _square(reader: ConfigReader, name: str) -> int:
    value = reader.take(name, object)
    sides = set(value) if isinstance(value, list) else {value}
    side = sides.pop() if len(sides) == 1 else None
    if not isinstance(side, int) or isinstance(side, bool):
        raise UserError(f"{reader.where}: {name} = {value!r}; expected one size or two equal ones")
    return side


def _finish_vision(
    reader: ConfigReader, *, image_size: int, patch: int, qkv_bias: bool
) -> InternViTConfig:
    """The part that both formats share."""
    reader.expect("norm_type", "layer_norm")
    reader.expect("hidden_act", "gelu")
    reader.expect("num_channels", 3)
    shape = read_vit(reader, image_size=image_size, patch=patch)
    cfg = InternViTConfig(**vars(shape), qkv_bias=qkv_bias)
    reader.finish()
    return cfg
