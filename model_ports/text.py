"""Host-side preparation of text prompts: tokenizer, chat template, and where a substring lies.

The checks refuse files of another checkpoint before a model answers nonsense.

transformers is imported when a tokenizer is loaded, not with this module.
"""

import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import TemplateError
from PIL import Image

from model_ports.configs import read_json
from model_ports.errors import UserError
from model_ports.images.token_grid import TokenGrid
from model_ports.prompt import Prompt
from model_ports.sentencepiece_bpe import is_internlm2, load_internlm2


def load_tokenizer(folder: Path, vocab: int, *, without_embedding: Collection[str] = ()) -> Any:
    """The checkpoint's fast tokenizer, from local files and without remote code.

    Args:
        folder: holds tokenizer.json (or whatever AutoTokenizer reads).
        vocab: rows of the model's embedding table.
        without_embedding: tokens that a published tokenizer has on top of the table.

    Raises:
        UserError: no usable tokenizer, or one with more tokens than the model has embeddings.
    """
    from transformers import AutoTokenizer

    try:
        if is_internlm2(folder):
            tokenizer = load_internlm2(folder)
        else:
            tokenizer = AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False, use_fast=True
            )
    except Exception as error:  # broken files make transformers and tokenizers raise any type
        raise UserError(
            f"{folder}: the tokenizer cannot be read ({error}). Copy tokenizer.json and "
            "tokenizer_config.json of the checkpoint into this folder"
        ) from error
    if not tokenizer.is_fast:
        raise UserError(
            f"{folder}: only a slow tokenizer was found, which cannot say which characters a "
            "token covers; add the checkpoint's tokenizer.json"
        )
    known = tokenizer.get_vocab()
    check_size(folder, len(known) - len(set(without_embedding) & set(known)), vocab)
    return tokenizer


def check_size(folder: Path, count: int, vocab: int) -> None:
    """Refuse a tokenizer of ``count`` tokens for a table of ``vocab`` embeddings.

    Raises:
        UserError: more tokens than embeddings.
    """
    if count > vocab:
        raise UserError(
            f"{folder}: the tokenizer has {count} tokens, but the model has {vocab} "
            "embeddings; they are from different checkpoints"
        )


def require_tokens(folder: Path, tokenizer: Any, tokens: Iterable[str], model: str) -> None:
    """Refuse a tokenizer that lacks one of the tokens that ``model`` (a name) needs.

    Raises:
        UserError: the first one that is missing.
    """
    vocabulary = tokenizer.get_vocab()
    for token in tokens:
        if token not in vocabulary:
            raise UserError(
                f"{folder}: the tokenizer has no {token} token, so it is not {model}'s; take the "
                "tokenizer files of the same checkpoint as the weights"
            )


def require_id(folder: Path, tokenizer: Any, token: str, stated: int) -> None:
    """Refuse a tokenizer in which the image token has another id than config.json says.

    Raises:
        UserError: another id than ``stated``, or no such token.
    """
    known = tokenizer.get_vocab().get(token)
    if known != stated:
        raise UserError(
            f"{folder}: config.json says that the image token is {stated}, but the "
            f"tokenizer has {token} = {known}; they are from different checkpoints"
        )


def read_eos_ids(folder: Path, tokenizer: Any, *turn_ends: str) -> tuple[int, ...]:
    """Every token that ends an answer: of generation_config.json, config.json, tokenizer.

    Args:
        turn_ends: further tokens that end one, where the tokenizer has them.

    Raises:
        UserError: none.
    """
    vocabulary = tokenizer.get_vocab()
    found: set[Any] = {tokenizer.eos_token_id, *map(vocabulary.get, turn_ends)}
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        value = read_json(path).get("eos_token_id") if path.is_file() else None
        found |= set(value) if isinstance(value, list) else {value}
    ids = {i for i in found if isinstance(i, int)}
    if not ids:
        raise UserError(
            f"{folder}: no end token; generation_config.json, config.json or "
            "tokenizer_config.json must name one (eos_token_id)"
        )
    return tuple(sorted(ids))


def read_template(folder: Path, tokenizer: Any) -> str | None:
    """The chat template: of the processor (chat_template.json) if there is one, else of the
    tokenizer; None if neither has any.

    Raises:
        UserError: chat_template.json is not what it should be.
    """
    path = folder / "chat_template.json"
    template = tokenizer.chat_template
    if path.is_file():
        try:
            template = json.loads(path.read_text(encoding="utf-8"))["chat_template"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: expected an object with 'chat_template'") from error
    if isinstance(template, dict):
        template = template.get("default")
    return str(template) if template else None


def require_template(folder: Path, tokenizer: Any) -> str:
    """The chat template of a model that has no other prompt.

    Raises:
        UserError: no template, or one that cannot be read.
    """
    template = read_template(folder, tokenizer)
    if template is None:
        raise UserError(
            f"{folder} has no chat template; copy chat_template.json, chat_template.jinja or the "
            "complete tokenizer_config.json from the checkpoint"
        )
    return template


def render_turns(
    tokenizer: Any,
    turns: Sequence[Mapping[str, Any]],
    template: str | None = None,
    **variables: Any,
) -> str:
    """The turns through a chat template, up to where the answer begins.

    Args:
        turns: ``role`` and ``content`` each.
        template: Jinja; None takes the tokenizer's.
        variables: of the template, besides the turns.

    Raises:
        UserError: a template that fails, or does not take contents of this kind.
    """
    try:
        return str(
            tokenizer.apply_chat_template(
                list(turns),
                chat_template=template,
                tokenize=False,
                add_generation_prompt=True,
                **variables,
            )
        )
    except (TemplateError, TypeError, ValueError) as error:
        raise UserError(
            f"the checkpoint's chat template cannot render this turn ({error}); take the template "
            "of the model's published checkpoint"
        ) from error


def token_slots(tokenizer: Any, prompt: Prompt, substring: str) -> np.ndarray:
    """Slots (int32, ascending) of the prompt's tokens that share a character with ``substring``.

    Args:
        tokenizer: the fast tokenizer that made the prompt.
        prompt: rendered; tokens appended later (``Prompt.extend``) are never part of it.
        substring: must occur exactly once in ``prompt.text``.
    """
    count = prompt.text.count(substring) if substring else 0
    if count != 1:
        raise UserError(
            f"{substring!r} occurs {count} times in the rendered prompt; a key set needs a text "
            "that occurs exactly once"
        )
    start = prompt.text.index(substring)
    end = start + len(substring)
    # A rendered chat template holds its own special tokens; plain text has none, and gets
    # those that the tokenizer adds (which cover no characters).
    for special in (False, True):
        encoded = tokenizer(prompt.text, add_special_tokens=special, return_offsets_mapping=True)
        ids = np.asarray(encoded["input_ids"], np.int32)
        if len(ids) <= len(prompt) and np.array_equal(ids, prompt.tokens[: len(ids)]):
            spans = np.asarray(encoded["offset_mapping"], np.int64).reshape(-1, 2)
            inside = (np.minimum(spans[:, 1], end) - np.maximum(spans[:, 0], start)) > 0
            return np.flatnonzero(inside).astype(np.int32)
    raise UserError(
        "the prompt's tokens are not what this tokenizer makes of its text; was it prepared "
        "with another checkpoint's tokenizer?"
    )


@dataclasses.dataclass
class BaseProcessor:
    """What the processors of all families share.

    Attributes:
        tokenizer: fast tokenizer of the checkpoint.
        eos_ids: any of these ends an answer.
    """

    tokenizer: Any
    eos_ids: tuple[int, ...]

    def token_slots(self, prompt: Prompt, substring: str) -> np.ndarray:
        """Slots of the tokens of ``substring``, which occurs once in ``prompt.text``."""
        return token_slots(self.tokenizer, prompt, substring)

    def decode(self, tokens: Sequence[int]) -> str:
        """Answer text without end tokens; other special tokens are kept."""
        kept = [int(t) for t in tokens if int(t) >= 0 and int(t) not in self.eos_ids]
        return str(
            self.tokenizer.decode(
                kept, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )


@dataclasses.dataclass
class TextProcessor(BaseProcessor):
    """Prompts and answers of a text-only checkpoint."""

    @classmethod
    def load(cls, folder: Path, vocab: int) -> "TextProcessor":
        """From a checkpoint folder; see ``load_tokenizer`` for the errors."""
        tokenizer = load_tokenizer(folder, vocab)
        return cls(tokenizer, read_eos_ids(folder, tokenizer))

    def prepare(
        self, text: str, images: Sequence[Image.Image] = (), *, image_first: bool = True
    ) -> Prompt:
        """One user turn through the checkpoint's chat template, ready to answer.

        A checkpoint without a chat template gets ``text`` as it is, to be completed.
        """
        if images:
            raise UserError(
                f"this is a text model and cannot read images ({len(images)} given); choose a "
                "vision-language model or a text benchmark"
            )
        templated = bool(self.tokenizer.chat_template)
        if templated:
            text = render_turns(self.tokenizer, [{"role": "user", "content": text}])
        ids = self.tokenizer(text, add_special_tokens=not templated)["input_ids"]
        tokens = np.asarray(ids, np.int32)
        return Prompt(
            text=text,
            tokens=tokens,
            positions=np.arange(len(tokens), dtype=np.int32)[None],
            visual_index=np.full(len(tokens), -1, np.int32),
            grid=TokenGrid.empty(),
            images={},
        )

    def resized(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """A text model has no image frame: the size itself."""
        return image_size
