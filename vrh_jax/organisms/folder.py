"""Write an organism as a Hugging Face folder, the layout that any published checkpoint has."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_ports.images.resize import IMAGENET_MEAN, IMAGENET_STD
from model_ports.port import Port
from model_ports.registry import port_for
from vrh_jax.data.organism_scenes import CELL, SIDE
from vrh_jax.organisms import vocab
from vrh_jax.organisms.backbone import MAX_POSITIONS, decoder_config
from vrh_jax.organisms.config import DecoderShape, VisionShape

PATCH = 4
MERGE = CELL // PATCH
WINDOW = 16  # pixels along one side of Qwen's attention window
# On-disk layout of the weights, as config.json's format says.
LAYOUTS: Mapping[vocab.Style, str] = {"qwen": "published", "intern": "hf_old"}


def sections(shape: DecoderShape) -> tuple[int, int, int]:
    """M-RoPE lengths: frequencies shared out over time, rows and columns."""
    half = shape.head_dim // 2
    return half - 2 * (half // 3), half // 3, half // 3


def _text_config(shape: DecoderShape) -> dict[str, Any]:
    cfg = decoder_config(shape)
    return {
        "hidden_size": cfg.dim,
        "intermediate_size": cfg.mlp_dim,
        "num_hidden_layers": cfg.layers,
        "num_attention_heads": cfg.heads,
        "num_key_value_heads": cfg.kv_heads,
        "hidden_act": "silu",
        "rms_norm_eps": cfg.norm_eps,
        "rope_theta": cfg.rope.theta,
        "max_position_embeddings": MAX_POSITIONS,
        "vocab_size": cfg.vocab,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    }


def _qwen_config(shape: DecoderShape, vision: VisionShape) -> dict[str, Any]:
    full = [i for i in range(vision.depth) if i % 2 == 1]
    return {
        "model_type": "qwen2_5_vl",
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        **_text_config(shape),
        "rope_scaling": {"type": "mrope", "mrope_section": list(sections(shape))},
        "image_token_id": vocab.token("<|image_pad|>"),
        "video_token_id": vocab.token("<|video_pad|>"),
        "vision_start_token_id": vocab.token("<|vision_start|>"),
        "vision_end_token_id": vocab.token("<|vision_end|>"),
        "vision_config": {
            "model_type": "qwen2_5_vl",
            "depth": vision.depth,
            "hidden_size": vision.dim,
            "num_heads": vision.heads,
            "intermediate_size": vision.mlp_dim,
            "out_hidden_size": shape.dim,
            "hidden_act": "silu",
            "in_channels": 3,
            "patch_size": PATCH,
            "temporal_patch_size": 2,
            "spatial_merge_size": MERGE,
            "window_size": WINDOW,
            "fullatt_block_indexes": full,
        },
    }


def _intern_config(shape: DecoderShape, vision: VisionShape) -> dict[str, Any]:
    return {
        "model_type": "internvl",
        "architectures": ["InternVLForConditionalGeneration"],
        "image_token_id": vocab.token("<IMG_CONTEXT>"),
        "image_seq_length": (SIDE // CELL) ** 2,
        "downsample_ratio": 1 / MERGE,
        "projector_hidden_act": "gelu",
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default",
        "tie_word_embeddings": True,
        "text_config": {"model_type": "qwen2", **_text_config(shape)},
        "vision_config": {
            "model_type": "internvl_vision",
            "num_hidden_layers": vision.depth,
            "hidden_size": vision.dim,
            "num_attention_heads": vision.heads,
            "intermediate_size": vision.mlp_dim,
            "hidden_act": "gelu",
            "image_size": [SIDE, SIDE],
            "patch_size": [PATCH, PATCH],
            "num_channels": 3,
            "layer_norm_eps": 1e-6,
            "norm_type": "layer_norm",
            "attention_bias": True,
            "use_qk_norm": False,
            "use_mask_token": False,
            "use_absolute_position_embeddings": True,
            "use_mean_pooling": True,
        },
    }


def _preprocessor(style: vocab.Style) -> dict[str, Any]:
    shared = {
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": True,
        "image_mean": list(IMAGENET_MEAN),
        "image_std": list(IMAGENET_STD),
        "resample": 3,
        "rescale_factor": 1 / 255,
    }
    if style == "qwen":
        return {
            "image_processor_type": "Qwen2VLImageProcessor",
            "patch_size": PATCH,
            "merge_size": MERGE,
            "temporal_patch_size": 2,
            "min_pixels": SIDE * SIDE,
            "max_pixels": SIDE * SIDE,
            **shared,
        }
    return {
        "image_processor_type": "GotOcr2ImageProcessor",
        "crop_to_patches": True,
        "min_patches": 1,
        "max_patches": 1,
        "size": {"height": SIDE, "width": SIDE},
        **shared,
    }


def _template(style: vocab.Style) -> str:
    picture = vocab.IMAGE_TOKEN[style]
    if style == "qwen":
        picture = vocab.IMAGE_OPEN[style] + picture + vocab.IMAGE_CLOSE[style]
    return (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
        "{% for part in message['content'] %}{% if part['type'] == 'image' %}" + picture + ""
        "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


def write_skeleton(
    folder: Path, style: vocab.Style, shape: DecoderShape, vision: VisionShape
) -> tuple[Port, Any]:
    """Everything but the weights.

    Returns:
        (port, config) as read back from the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    make = _qwen_config if style == "qwen" else _intern_config
    config = {
        **make(shape, vision),
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": vocab.token(vocab.END),
        "pad_token_id": vocab.token(vocab.PAD),
    }
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": vocab.END,
        "pad_token": vocab.PAD,
        "unk_token": vocab.UNKNOWN,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
    }
    ends = {"eos_token_id": [vocab.token(vocab.END)], "pad_token_id": vocab.token(vocab.PAD)}
    files: dict[str, Mapping[str, Any]] = {
        "config.json": config,
        "tokenizer_config.json": tokenizer,
        "preprocessor_config.json": _preprocessor(style),
        "generation_config.json": {"do_sample": False, **ends},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(_template(style))
    vocab.build_tokenizer().save(str(folder / "tokenizer.json"))
    port = port_for(config)
    return port, port.read_config(config)
