"""PaliGemma 2's config.json: what is read, what is refused by name, and full-size key tables."""

import json
from typing import Any

import pytest
import torch
from support.configs import changed
from support.key_manifest import fake_headers, read_key_manifest
from transformers import PaliGemmaConfig, PaliGemmaForConditionalGeneration

from model_ports.catalogue import published_config
from model_ports.convert.plan import build_plan
from model_ports.errors import UserError
from model_ports.registry import port_for
from model_ports.vlms.paligemma2 import PORT

NAME = "paligemma2-10b"


def published() -> dict[str, Any]:
    raw: dict[str, Any] = published_config(NAME)
    return raw


def saved(**changes: Any) -> dict[str, Any]:
    """As transformers 5 writes it, with every default spelled out."""
    raw = published() | changes
    return json.loads(json.dumps(PaliGemmaConfig.from_dict(raw).to_dict()))


@pytest.mark.parametrize("raw", [published(), saved()], ids=["published", "saved"])
def test_published_values(raw: dict[str, Any]) -> None:
    assert port_for(raw) is PORT
    config = PORT.read_config(raw)
    d, v = config.decoder, config.vision
    shape = (d.layers, d.dim, d.heads, d.kv_heads, d.head_dim, d.mlp_dim, d.vocab)
    assert shape == (42, 3584, 16, 8, 256, 14336, 257216)
    assert (d.norm_eps, d.rope.theta, d.rope.axes, d.rope.pairs) == (1e-6, 1e4, 1, "halves")
    assert (d.scale, d.attn_softcap, d.final_softcap) == (1 / 16, 50.0, 30.0)
    assert d.windows == (4096, 0) * 21
    assert (d.embed_scale, d.act) == (3584**0.5, "gelu_tanh")
    assert (d.tied, d.norm_offset, d.post_norms, d.qk_norm, d.qkv_bias) == (
        True, True, True, False, False,
    )  # fmt: skip
    assert (v.layers, v.dim, v.heads, v.mlp_dim, v.norm_eps) == (27, 1152, 16, 4304, 1e-6)
    assert (v.side, v.patch, v.image_size) == (32, 14, 448)
    assert config.image_token_id == 257152


def test_other_resolutions_and_scales_are_read() -> None:
    raw = changed(published(), "vision_config.image_size", 224)
    raw["vision_config"]["num_image_tokens"] = 256
    assert PORT.read_config(raw).vision.side == 16
    raw = changed(published(), "text_config.query_pre_attn_scalar", 144)
    assert PORT.read_config(raw).decoder.scale == 1 / 12
    raw = changed(published(), "text_config.attn_logit_softcapping", None)
    assert PORT.read_config(raw).decoder.attn_softcap is None
    raw = saved()
    raw["text_config"]["layer_types"][0] = "full_attention"
    assert PORT.read_config(raw).decoder.windows[:3] == (0, 0, 4096)


def test_manifest_is_what_transformers_builds() -> None:
    with torch.device("meta"):
        model = PaliGemmaForConditionalGeneration(PaliGemmaConfig.from_dict(published()))
    in_memory = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    del in_memory["lm_head.weight"]  # is the embedding table
    plan = build_plan(fake_headers(in_memory), published(), PORT, None)
    assert plan.layout == "in_memory"

    def hub(name: str) -> str:
        name = name.removeprefix("model.").replace("vision_tower.", "vision_tower.vision_model.")
        return name.replace("language_model.", "language_model.model.")

    assert {hub(name): shape for name, shape in in_memory.items()} == read_key_manifest(NAME)


REFUSED = [
    ("something_new", 1, "something_new"),
    ("tie_word_embeddings", False, "tie_word_embeddings"),
    ("projection_dim", 2048, "projection_dim"),
    ("image_token_index", 257216, "image_token_index"),
    ("image_token_index", "257152", "image_token_index"),
    ("text_config.model_type", "gemma", "PaliGemma 1"),
    ("text_config.model_type", "gemma3_text", "gemma3_text"),
    ("text_config.hidden_act", "silu", "hidden_act"),
    ("text_config.hidden_activation", "gelu", "hidden_activation"),
    ("text_config.attention_bias", True, "attention_bias"),
    ("text_config.tie_word_embeddings", False, "tie_word_embeddings"),
    ("text_config.use_bidirectional_attention", False, "use_bidirectional_attention"),
    ("text_config.sliding_window", None, "sliding_window"),
    ("text_config.sliding_window", 0, "sliding_window"),
    ("text_config.layer_types", ["full_attention"], "layer_types"),
    ("text_config.layer_types", ["chunked_attention"] * 42, "layer_types"),
    ("text_config.num_key_value_heads", 5, "key-value heads"),
    ("text_config.query_pre_attn_scalar", 0, "query_pre_attn_scalar"),
    ("text_config.attn_logit_softcapping", -1.0, "attn_logit_softcapping"),
    ("text_config.rope_scaling", {"rope_type": "linear", "factor": 2.0}, "linear"),
    ("text_config.rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4}, "yarn"),
    ("text_config.qk_norm", True, "text_config.*qk_norm"),
    ("text_config.hidden_size", "3584", "hidden_size"),
    ("vision_config.model_type", "clip_vision_model", "clip_vision_model"),
    ("vision_config.hidden_act", "quick_gelu", "hidden_act"),
    ("vision_config.vision_use_head", True, "vision_use_head"),
    ("vision_config.num_channels", 4, "num_channels"),
    ("vision_config.image_size", 450, "image_size"),
    ("vision_config.num_image_tokens", 256, "num_image_tokens"),
    ("vision_config.projection_dim", 2048, "projection_dim"),
    ("vision_config.num_attention_heads", 7, "7 heads"),
    ("vision_config.use_rope", True, "vision_config.*use_rope"),
]


@pytest.mark.parametrize(("path", "value", "named"), REFUSED)
def test_refuses_what_it_cannot_honour_by_name(path: str, value: Any, named: str) -> None:
    with pytest.raises(UserError, match=named):
        PORT.read_config(changed(published(), path, value))


@pytest.mark.parametrize(
    "path",
    [
        "text_config",
        "text_config.hidden_size",
        "text_config.num_hidden_layers",
        "text_config.num_attention_heads",
        "text_config.num_key_value_heads",
        "text_config.intermediate_size",
        "text_config.vocab_size",
        "vision_config",
        "vision_config.hidden_size",
        "vision_config.num_hidden_layers",
        "vision_config.intermediate_size",
    ],
)
def test_missing_attributes_are_named(path: str) -> None:
    with pytest.raises(UserError, match=path.rsplit(".", maxsplit=1)[-1]):
        PORT.read_config(changed(published(), path, ...))


def test_the_image_token_is_needed_by_either_name() -> None:
    raw = changed(published(), "image_token_index", ...)
    with pytest.raises(UserError, match="image_token"):
        PORT.read_config(raw)
    assert PORT.read_config(raw | {"image_token_id": 257152}) == PORT.read_config(published())


def test_what_files_leave_out_is_transformers_default() -> None:
    """transformers writes only what differs from its defaults; both readers agree on them."""
    raw = published()
    for name in ("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar",
                 "sliding_window", "hidden_act", "hidden_activation"):  # fmt: skip
        del raw["text_config"][name]
    ours = PORT.read_config(raw)
    theirs = json.loads(json.dumps(PaliGemmaConfig.from_dict(raw).to_dict()))
    assert ours == PORT.read_config(theirs) == PORT.read_config(published())
