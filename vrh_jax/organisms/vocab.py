"""The word-level tokenizer that all organisms share, their prompts and their answers.

Phrases that a prompt repeats (and the JSON around a box) are one token each, so that
sequences stay short on a CPU. The numbers of a box carry their punctuation ("[12", ", 34, ",
"40", ", 60]"), so that a token says which of the four coordinates it is.
``decode(encode(text)) == text`` for everything they use.
"""

import functools
from typing import Any, Literal

from vrh_jax.data.organism_language import PLACES, PLURALS, RELATIONS
from vrh_jax.data.organism_scenes import COLORS, GRID, SHAPES, SIDE, SIZES

Style = Literal["qwen", "intern"]
STYLES: tuple[Style, ...] = ("qwen", "intern")
BINS = SIDE // GRID + 1

END, PAD, UNKNOWN = "<|im_end|>", "<|endoftext|>", "<unk>"
SPECIAL = (
    PAD,
    "<|im_start|>",
    END,
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<img>",
    "</img>",
    "<IMG_CONTEXT>",
    "<ref>",
    "</ref>",
    "<box>",
    "</box>",
)
BOX_PROMPTS: dict[Style, str] = {
    "qwen": "Locate {}, output its bbox coordinates using JSON format.",
    "intern": "Please provide the bounding box coordinate of the region this sentence "
    "describes: <ref>{}</ref>",
}
BOX_ANSWERS: dict[Style, str] = {
    "qwen": '```json\n[{{"bbox_2d": [{}, {}, {}, {}], "label": "object"}}]\n```',
    "intern": "<box>[[{}, {}, {}, {}]]</box>",
}
IMAGE_OPEN: dict[Style, str] = {"qwen": "<|vision_start|>", "intern": "<img>"}
IMAGE_CLOSE: dict[Style, str] = {"qwen": "<|vision_end|>", "intern": "</img>"}
IMAGE_TOKEN: dict[Style, str] = {"qwen": "<|image_pad|>", "intern": "<IMG_CONTEXT>"}
OPEN_TURN = "<|im_start|>user\n"
CLOSE_TURN = "<|im_end|>\n<|im_start|>assistant\n"

_PHRASES = (
    ", output its bbox coordinates using JSON format.",
    "Please provide the bounding box coordinate of the region this sentence describes: ",
    '```json\n[{"bbox_2d": ',
    ', "label": "object"}]\n```',
)
_COORDINATE: dict[Style, tuple[str, ...]] = {
    "qwen": ("[{}", ", {}, ", "{}", ", {}]"),
    "intern": ("[[{}", ", {}, ", "{}", ", {}]]"),
}
_PATTERN = (
    r"\[{1,2}\d+|, \d+, |, \d+\]{1,2}|\d+|user\n|assistant\n|system\n|, | ?[A-Za-z]+|\s|"
    r"[^\sA-Za-z\d]"
)


def box_numbers(style: Style, box: tuple[int, int, int, int]) -> tuple[int, ...]:
    """Pixels of the (unresized) image, or integers in 0..1000."""
    return box if style == "qwen" else tuple(round(v * 1000 / SIDE) for v in box)


def box_tokens(style: Style, box: tuple[int, int, int, int]) -> tuple[str, ...]:
    """The four tokens that state the coordinates."""
    pairs = zip(_COORDINATE[style], box_numbers(style, box), strict=True)
    return tuple(pattern.format(number) for pattern, number in pairs)


def box_answer(style: Style, box: tuple[int, int, int, int]) -> str:
    """What a model of this style prints for a box in pixels."""
    return BOX_ANSWERS[style].format(*box_numbers(style, box))


def _words() -> list[str]:
    plain = [*SIZES, *COLORS, *SHAPES, *PLACES, *PLURALS.values(), "object", "objects"]
    related = sorted({word for phrase in RELATIONS for word in phrase.split()})
    inner = [*plain, *related, "the", "is", "there", "a", "are", "color", "shape", "size"]
    # Words inside a sentence, and those that answer, carry their leading space.
    words = ["the", "What", "Is", "How", "Locate"]
    words += [f" {w}" for w in (*inner, "many", "yes", "no")]
    words += [str(n) for n in range(8)]
    for b in range(BINS):
        words += [t for style in STYLES for t in box_tokens(style, (b * GRID,) * 4)]
    words += ["user\n", "assistant\n", "system\n", "\n", " ", ", ", "?", ".", ",", ":", "[", "]"]
    return words


def answer_word(word: str) -> str:
    """The token that answers a question: a number, or a word with its leading space."""
    return word if word.isdigit() else f" {word}"


@functools.cache
def build_tokenizer() -> Any:
    """A ``tokenizers.Tokenizer`` built from the word list; the same on every machine."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    entries = [*SPECIAL, UNKNOWN, *_PHRASES, *_words()]
    vocab = {word: i for i, word in enumerate(dict.fromkeys(entries))}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_PATTERN), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in _PHRASES])
    return tokenizer


@functools.lru_cache(maxsize=100_000)
def encode(text: str) -> tuple[int, ...]:
    """Token ids of a text.

    Raises:
        ValueError: a word is not in the vocabulary.
    """
    tokenizer = build_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    if tokenizer.token_to_id(UNKNOWN) in ids:
        raise ValueError(f"the organisms' vocabulary does not cover {text!r}")
    return tuple(ids)


def token(word: str) -> int:
    """Id of one vocabulary entry."""
    index: int | None = build_tokenizer().token_to_id(word)
    if index is None:
        raise ValueError(f"{word!r} is not one token of the organisms' vocabulary")
    return index
