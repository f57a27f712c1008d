"""The byte-level BPE tokenizer inside a GGUF file -> tokenizer.json and tokenizer_config.json."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_ports.errors import UserError

# Values of tokenizer.ggml.token_type.
_CONTROL, _USER_DEFINED = 3, 4

# tokenizer.ggml.pre -> numbers are split into single digits before the GPT-2 pattern.
_SINGLE_DIGITS = {"smollm": True, "gpt-2": False}

_ROLES = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


def write_tokenizer(fields: Mapping[str, Any], folder: Path) -> None:
    """Write both files so that AutoTokenizer gives the same ids as the GGUF's own list.

    Args:
        fields: the GGUF's metadata by name.
        folder: exists.

    Raises:
        UserError: another tokenizer model or pre-tokenizer than those known here.
    """
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    tokenizer = build_tokenizer(fields)
    if len(tokens) != tokenizer.get_vocab_size():
        raise UserError("GGUF: the tokenizer's list of tokens has duplicates")
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        # The class that takes tokenizer.json as it is, without rebuilding its pre-tokenizer.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(fields.get("llama.context_length", 0)) or None,
    }
    config |= {role: tokens[fields[name]] for role, name in _ROLES.items() if name in fields}
    template = fields.get("tokenizer.chat_template")
    if template:
        config["chat_template"] = template
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def build_tokenizer(fields: Mapping[str, Any]) -> Any:
    """A ``tokenizers.Tokenizer`` from GGUF metadata (``tokenizer.ggml.*``)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre not in _SINGLE_DIGITS:
        raise UserError(
            f"GGUF: tokenizer model {kind!r} with pre-tokenizer {pre!r} is not supported; known "
            f"are 'gpt2' with {' or '.join(map(repr, _SINGLE_DIGITS))}"
        )
    for name in ("add_bos_token", "add_eos_token", "add_space_prefix"):
        if fields.get(f"tokenizer.ggml.{name}", False):
            raise UserError(f"GGUF: tokenizer.ggml.{name} is true, which is not supported")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    steps: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    if _SINGLE_DIGITS[pre]:
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    types: list[int] = fields["tokenizer.ggml.token_type"]
    for add, kind_of_token in (
        (tokenizer.add_special_tokens, _CONTROL),
        (tokenizer.add_tokens, _USER_DEFINED),
    ):
        chosen = [t for t, k in zip(tokens, types, strict=True) if k == kind_of_token]
        add([AddedToken(token, normalized=False) for token in chosen])
    return tokenizer
