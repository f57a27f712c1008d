"""Strict reading of a Hugging Face config.json: every attribute is used, checked or named
as irrelevant; anything else is refused by name."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from model_ports.errors import UserError

T = TypeVar("T")
_MISSING = object()

# Attributes of any transformers config that cannot change a forward pass at inference.
BOOKKEEPING = frozenset(
    """_name_or_path architectures auto_map torch_dtype dtype transformers_version model_type
    use_cache initializer_range initializer_factor attention_dropout bos_token_id eos_token_id
    pad_token_id return_dict output_hidden_states output_attentions torchscript use_bfloat16
    chunk_size_feed_forward is_encoder_decoder id2label label2id problem_type
    _attn_implementation_autoset attn_implementation use_flash_attn _commit_hash
    finetuning_task task_specific_params""".split()
)

# Generation settings that older transformers versions wrote into every model config.
GENERATION = frozenset(
    """bad_words_ids begin_suppress_tokens decoder_start_token_id diversity_penalty do_sample
    early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty
    forced_bos_token_id forced_eos_token_id length_penalty max_length min_length
    no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_scores prefix
    remove_invalid_values repetition_penalty return_dict_in_generate sep_token_id
    suppress_tokens temperature tf_legacy_loss tokenizer_class top_k top_p typical_p""".split()
)

# Sizes, and numbers that are divided by; a model with none of them, or less, does not exist.
POSITIVE = frozenset(
    """attn_logit_softcapping depth factor final_logit_softcapping head_dim heads hidden_size
    image_size intermediate_size kv_lora_rank layer_norm_eps layers max_position_embeddings
    moe_intermediate_size n_routed_experts n_shared_experts num_attention_heads
    num_experts_per_tok num_heads num_hidden_layers num_key_value_heads num_position_embeddings
    out_hidden_size patch_size qk_nope_head_dim qk_rope_head_dim query_pre_attn_scalar
    rms_norm_eps rope_theta sliding_window spatial_merge_size temporal_patch_size v_head_dim
    vocab_size width window_size""".split()
)

# Structural switches from the same dumps, with the only value that every port honours.
INERT: Mapping[str, Any] = {
    "add_cross_attention": False,
    "cross_attention_hidden_size": None,
    "is_decoder": False,
    "pruned_heads": {},
    "tie_encoder_decoder": False,
}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of a checkpoint folder.

    Raises:
        UserError: no such file, or something else in it.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; a checkpoint folder has one. Download it") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON ({error}). Download it again") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} is no JSON object. Download it again")
    return value


class ConfigReader:
    """Takes attributes out of a config one by one; ``finish`` refuses what is left.

    Args:
        raw: the parsed JSON object.
        where: how messages name it, e.g. ``config.json`` or ``config.json: vision_config``.
    """

    def __init__(self, raw: Mapping[str, Any], where: str = "config.json"):
        self.raw, self.where = dict(raw), where
        self.seen: set[str] = set()

    def take(self, name: str, kind: type[T], default: Any = _MISSING) -> T:
        """The attribute's value, checked to be of ``kind`` (int is accepted for float) and, where
        its name says that it is a size or the like, to be positive."""
        self.seen.add(name)
        value = self.raw.get(name, _MISSING)
        if value is _MISSING:
            if default is _MISSING:
                raise UserError(f"{self.where} lacks {name!r}, which this model needs")
            return cast(T, default)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise UserError(f"{self.where}: {name} = {value!r}; expected {kind.__name__}")
        if isinstance(value, int | float) and name in POSITIVE and not 0 < value < math.inf:
            raise UserError(
                f"{self.where}: {name} = {value!r}; expected a positive {kind.__name__}"
            )
        return value

    def optional(self, name: str, kind: type[T]) -> T | None:
        """As ``take``, but absent and null both give None."""
        if self.raw.get(name) is None:
            self.seen.add(name)
            return None
        return self.take(name, kind)

    def expect(self, name: str, *allowed: Any) -> None:
        """The attribute, if present, must have one of the values that this port honours."""
        self.seen.add(name)
        value = self.raw.get(name, _MISSING)
        if value is not _MISSING and value not in allowed:
            options = " or ".join(repr(a) for a in allowed)
            raise UserError(
                f"{self.where}: {name} = {value!r} is not supported; this port honours {options}"
            )

    def ignore(self, names: Iterable[str]) -> None:
        """Attributes without effect on this port's forward pass."""
        self.seen.update(names)

    def sub(self, name: str, default: Any = _MISSING) -> "ConfigReader":
        """Reader of a nested object."""
        return ConfigReader(self.take(name, dict, default), f"{self.where}: {name}")

    def finish(self) -> None:
        """Refuse attributes that nobody asked for."""
        for name, value in INERT.items():
            self.expect(name, value)
        left = sorted(set(self.raw) - self.seen - BOOKKEEPING - GENERATION)
        if left:
            raise UserError(
                f"{self.where}: unknown attribute {', '.join(map(repr, left))}. This port neither "
                "uses it nor knows it to be irrelevant, so converting would risk wrong numbers. "
                "Check the checkpoint's model type, or teach the port's config reader about it."
            )


def read_image_token(reader: ConfigReader, vocab: int) -> int:
    """Id of the placeholder of visual tokens, under either of the names that files give it.

    Raises:
        UserError: none, or one that has no embedding.
    """
    names = ("image_token_id", "image_token_index")
    name = next((name for name in names if name in reader.raw), None)
    if name is None:
        raise UserError(f"{reader.where} lacks {names[0]!r} (or {names[1]!r}), which it needs")
    token = reader.take(name, int)
    if not 0 <= token < vocab:
        raise UserError(f"{reader.where}: {name} {token} is outside the vocabulary of {vocab}")
    return token
