"""InternLM2's tokenizer from its SentencePiece file, without the code that its repositories bring.

``tokenizer.model`` is a protocol buffer (sentencepiece_model.proto of google/sentencepiece). Of
its BPE models this reads the pieces and the settings that decide about ids, and builds the same
tokenizer on the ``tokenizers`` library. What would give other ids and is not built (unigram
models, character maps, suffix whitespace) is refused by name.
"""

import dataclasses
import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from model_ports.errors import UserError

MODEL, SETTINGS, ADDED = "tokenizer.model", "tokenizer_config.json", "added_tokens.json"
CLASSES = ("InternLM2Tokenizer", "InternLM2TokenizerFast")
SPACE = "\u2581"
# SentencePiece.Type
_NORMAL, _UNKNOWN, _USER_DEFINED = 1, 2, 4
# TrainerSpec.ModelType
_BPE = 2


@dataclasses.dataclass(frozen=True)
class Piece:
    """One entry of the vocabulary; its index is its id."""

    text: str
    score: float
    kind: int


@dataclasses.dataclass(frozen=True)
class SentencePieceModel:
    """What a model file says. Defaults are those of the protocol buffer.

    Attributes:
        dummy_prefix: a space is put before every text.
        squeeze: spaces at both ends and repeated ones are dropped.
    """

    pieces: tuple[Piece, ...]
    byte_fallback: bool = False
    dummy_prefix: bool = True
    squeeze: bool = True


def is_internlm2(folder: Path) -> bool:
    """Whether a checkpoint folder's tokenizer is InternLM2's."""
    return read_settings(folder).get("tokenizer_class") in CLASSES


def read_settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json of a folder; empty without one."""
    path = folder / SETTINGS
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
    except ValueError as error:
        raise UserError(f"{path} cannot be read as JSON ({error}). Download it again") from error


def load_internlm2(folder: Path) -> Any:
    """A fast transformers tokenizer for a folder with InternLM2's tokenizer files.

    Raises:
        UserError: files missing or damaged, or a model that is not understood.
    """
    from transformers import PreTrainedTokenizerFast

    settings = read_settings(folder)
    if (folder / "tokenizer.json").is_file():
        return PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    path = folder / MODEL
    if not path.is_file():
        raise UserError(
            f"{folder}: InternLM2's tokenizer needs tokenizer.model (or a tokenizer.json), which "
            "is missing; copy it from the checkpoint's repository"
        )
    model = parse_model(path)
    added = _added_tokens(folder, settings)
    bos = settings.get("bos_token", "<s>") if settings.get("add_bos_token", True) else None
    names = {
        name: _content(settings.get(f"{name}_token", default))
        for name, default in (("bos", "<s>"), ("eos", "</s>"), ("unk", "<unk>"), ("pad", "</s>"))
    }
    fast = PreTrainedTokenizerFast(
        tokenizer_object=build(model, added, bos=_content(bos), where=path),
        clean_up_tokenization_spaces=False,
        **{f"{name}_token": content for name, content in names.items()},
    )
    template = folder / "chat_template.jinja"
    fast.chat_template = (
        template.read_text() if template.is_file() else settings.get("chat_template")
    )
    return fast


def parse_model(path: Path) -> SentencePieceModel:
    """Read a tokenizer.model; refuses what this module does not build."""
    try:
        top = list(_fields(path.read_bytes()))
        pieces = tuple(_piece(value) for number, value in top if number == 1)
        trainer = dict(_fields(b"".join(value for number, value in top if number == 2)))
        normal = dict(_fields(b"".join(value for number, value in top if number == 3)))
    except (ValueError, TypeError, IndexError, struct.error) as error:
        raise UserError(
            f"{path} is no SentencePiece model ({error}). Copy or download it again"
        ) from error
    refused = {
        "another model type than BPE": trainer.get(3, 1) != _BPE,
        "whitespace as suffix": bool(trainer.get(24, 0)),
        "a character map": bool(normal.get(2, b"")),
        "unescaped whitespace": not normal.get(5, 1),
    }
    found = [name for name, wrong in refused.items() if wrong]
    if found or not pieces:
        raise UserError(
            f"{path}: SentencePiece model with {', '.join(found) or 'no pieces'}; InternLM2's is "
            "a plain BPE model. Take the checkpoint's own file, or add a tokenizer.json"
        )
    return SentencePieceModel(
        pieces=pieces,
        byte_fallback=bool(trainer.get(35, 0)),
        dummy_prefix=bool(normal.get(3, 1)),
        squeeze=bool(normal.get(4, 1)),
    )


def build(
    model: SentencePieceModel,
    added: Mapping[int, Mapping[str, Any]],
    *,
    bos: str | None,
    where: Path,
) -> Any:
    """A ``tokenizers.Tokenizer``.

    Args:
        added: id -> AddedToken settings; may rename pieces of the model and add to them.
        bos: put before every text when special tokens are asked for.
        where: how messages name the source.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors

    # A piece that is an added token under another name keeps its id, not its name.
    names = [added[i]["content"] if i in added else p.text for i, p in enumerate(model.pieces)]
    vocab = {name: index for index, name in enumerate(names)}
    if len(vocab) != len(names):
        raise UserError(f"{where}: two pieces have the same name; copy or download it again")
    unknown = next((p.text for p in model.pieces if p.kind == _UNKNOWN), None)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=list(_merges(model, set(added))),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=model.byte_fallback,
        )
    )
    steps: list[Any] = [normalizers.Replace(" ", SPACE)]
    if model.dummy_prefix:
        steps.insert(0, normalizers.Prepend(" "))
    if model.squeeze:
        steps.insert(0, normalizers.Replace(Regex(r"\A +| +\z"), ""))
        steps.insert(1, normalizers.Replace(Regex(" {2,}"), " "))
    tokenizer.normalizer = normalizers.Sequence(steps)
    back: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if model.dummy_prefix:
        back.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(back)
    own = [p.text for i, p in enumerate(model.pieces) if p.kind == _USER_DEFINED and i not in added]
    tokenizer.add_tokens([AddedToken(text, normalized=not model.dummy_prefix) for text in own])
    for index, settings in sorted(added.items()):
        options = {k: bool(settings.get(k, False)) for k in ("lstrip", "rstrip", "single_word")}
        token = AddedToken(
            settings["content"], normalized=False, special=settings.get("special", True), **options
        )
        add = tokenizer.add_special_tokens if token.special else tokenizer.add_tokens
        add([token])
        if tokenizer.token_to_id(token.content) != index:
            raise UserError(
                f"{where}: added token {token.content!r} should have id {index}, but the model "
                f"gives it {tokenizer.token_to_id(token.content)}; the tokenizer's files are of "
                "different checkpoints"
            )
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, vocab[bos])]
        )
    return tokenizer


def _merges(model: SentencePieceModel, added: set[int]) -> Iterator[tuple[str, str]]:
    """Every way to make a piece of two others, best piece first.

    SentencePiece merges the pair whose piece has the highest score; its file keeps no pairs.
    """
    usable = {
        piece.text: (-piece.score, index)
        for index, piece in enumerate(model.pieces)
        if piece.kind == _NORMAL and index not in added
    }
    for text in sorted(usable, key=lambda text: usable[text]):
        pairs = [
            (text[:cut], text[cut:])
            for cut in range(1, len(text))
            if text[:cut] in usable and text[cut:] in usable
        ]
        yield from sorted(pairs, key=lambda pair: (usable[pair[0]][1], usable[pair[1]][1]))


def _added_tokens(folder: Path, settings: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """id -> settings, from tokenizer_config.json or the older added_tokens.json."""
    added = {int(i): dict(t) for i, t in (settings.get("added_tokens_decoder") or {}).items()}
    path = folder / ADDED
    if path.is_file():
        for content, index in json.loads(path.read_text(encoding="utf-8")).items():
            added.setdefault(int(index), {"content": content})
    return added


def _content(token: Any) -> str | None:
    """A token given by name or as a dict of AddedToken settings."""
    return token.get("content") if isinstance(token, Mapping) else token


def _piece(data: Any) -> Piece:
    fields = dict(_fields(data))
    (score,) = struct.unpack("<f", fields.get(2, b"\0\0\0\0"))
    return Piece(fields[1].decode("utf-8") if 1 in fields else "", score, fields.get(3, _NORMAL))


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value) of a protocol buffer message: int, 4 or 8 bytes, or bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"field {number} has wire type {wire}")
        if at + size > len(data):
            raise ValueError(f"field {number} ends beyond the file")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
