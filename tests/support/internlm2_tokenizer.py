"""InternLM2's tokenizer files, trained small with the sentencepiece library, and its slow rule.

The rule of the published code: split the text at added tokens, let SentencePiece encode the rest,
put ``<s>`` in front.
"""

import json
import re
from pathlib import Path
from typing import Any

import sentencepiece

CORPUS = [
    "Locate the red square, output its bbox coordinates using JSON format.",
    "Please provide the bounding box coordinate of the region this sentence describes: a b c 0123",
    "where is the blue disc? what does it cover?  two  spaces\tand a tab, \u4f60\u597d. 456 789",
    "aaaa aaaaaaaa    b        c            dd\t\t\t\te 1000000 000 aaaaaaa    x",
]
# Names that the model's unused pieces get, as in the published tokenizer_config.json.
RENAMED = ("<|im_end|>", "<|im_start|>")
APPENDED = ("<img>", "</img>", "<IMG_CONTEXT>", "<quad>", "</quad>", "<ref>", "</ref>", "<box>",
            "</box>")  # fmt: skip
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_internlm2_tokenizer(folder: Path, **training: Any) -> dict[str, int]:
    """Write tokenizer.model and tokenizer_config.json; returns the added tokens' ids.

    Args:
        training: settings of ``SentencePieceTrainer`` that differ from InternLM2's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {
        "model_type": "bpe", "vocab_size": 430, "byte_fallback": True, "hard_vocab_limit": False,
        "add_dummy_prefix": False, "remove_extra_whitespaces": False, "split_digits": False,
        "normalization_rule_name": "identity", "allow_whitespace_only_pieces": True,
        "user_defined_symbols": ["[UNUSED_TOKEN_0]", "[UNUSED_TOKEN_1]"], "minloglevel": 2,
    } | training  # fmt: skip
    with (folder / "tokenizer.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS * 3), model_writer=file, **options
        )
    model = slow_model(folder)
    ids = {"<unk>": 0, "<s>": 1, "</s>": 2}
    if "[UNUSED_TOKEN_0]" in options["user_defined_symbols"]:
        ids |= {name: model.piece_to_id(f"[UNUSED_TOKEN_{i}]") for i, name in enumerate(RENAMED)}
    for name in (*RENAMED, *APPENDED):
        ids.setdefault(name, model.get_piece_size() + sum(i >= len(model) for i in ids.values()))
    plain = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    settings = {
        "added_tokens_decoder": {
            str(i): {"content": name, "special": True, **plain} for name, i in ids.items()
        },
        "additional_special_tokens": [*RENAMED, *APPENDED],
        "auto_map": {"AutoTokenizer": ["tokenization_internlm2.InternLM2Tokenizer", None]},
        "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "unk_token": "<unk>",
        "chat_template": TEMPLATE, "clean_up_tokenization_spaces": False,
        "tokenizer_class": "InternLM2Tokenizer",
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return ids


def slow_model(folder: Path) -> Any:
    """The sentencepiece library's own reading of tokenizer.model."""
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


def slow_ids(folder: Path, ids: dict[str, int], text: str, *, bos: bool = True) -> list[int]:
    """Token ids by the published code's rule."""
    model = slow_model(folder)
    pattern = "(" + "|".join(re.escape(name) for name in ids) + ")"
    out = [1] if bos else []
    for part in re.split(pattern, text):
        if part:
            out += [ids[part]] if part in ids else model.encode(part)
    return out
