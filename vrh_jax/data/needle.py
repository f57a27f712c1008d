"""Needle in filler text, for text retrieval heads (Retrieval Heads, arXiv 2404.15574).

A sample is filler, one needle ("The secret code of Alice is 48213."), one distractor of the
same kind about somebody else, and a question about the needle. The key set is the needle's
tokens. Detection and evaluation share no subject, no value and no order of the filler.
"""

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import Field

from model_ports.errors import UserError
from vrh_jax.data.registry import Split, Task
from vrh_jax.data.sample import Sample
from vrh_jax.strict import Strict

# Depths are spread evenly: sample i gets one of these many, in turn.
_DEPTHS = 10
_CODES = range(10_000, 100_000)
# Distinct needles run out long after this many samples of one split.
_TRIES = 1000


class NeedleOptions(Strict):
    """Options of the task ``needle``."""

    words: int = Field(170, ge=40, le=20_000, description="length of the context in words")
    facts: tuple[str, ...] = Field(
        (), description="kinds of fact (see needle.yaml); default all, in turn"
    )
    seed: int = Field(0, ge=0, description="seed of needles, places and filler")
    template: str = Field(
        "{context}\n\n{question}", description="the whole text, with {context} and {question}"
    )


@dataclasses.dataclass(frozen=True)
class _Fact:
    """One filled-in needle."""

    sentence: str
    question: str
    value: str


@cache
def words() -> dict[str, Any]:
    """The lists of needle.yaml."""
    return dict(yaml.safe_load(Path(__file__).with_name("needle.yaml").read_text()))


def load(options: NeedleOptions, split: Split, count: int) -> list[Sample]:
    """``count`` samples of a split; a larger count keeps the first ones as they are.

    Raises:
        UserError: an unknown kind of fact, a template without its fields, or more samples
            than there are distinct needles.
    """
    kinds = options.facts or tuple(words()["facts"])
    for kind in kinds:
        if kind not in words()["facts"]:
            raise UserError(f"needle: fact {kind!r} is unknown (known: {list(words()['facts'])})")
    for field in ("{context}", "{question}"):
        if field not in options.template:
            raise UserError(f"needle: template lacks {field}: {options.template!r}")
    seen: set[str] = set()
    samples = []
    for index in range(count):
        kind = kinds[index % len(kinds)]
        rng = np.random.default_rng([options.seed, split == "evaluation", index])
        fact, other = _new_pair(kind, split, rng, seen)
        samples.append(_sample(options, split, index, fact, other, rng))
    return samples


TASK = Task(options=NeedleOptions, load=load, generated=True)


def _new_pair(
    kind: str, split: Split, rng: np.random.Generator, seen: set[str]
) -> tuple[_Fact, _Fact]:
    """A needle not used before and a distractor with another subject and value."""
    for _ in range(_TRIES):
        (who, other), (what, else_) = _two(subjects(split), rng), _values(kind, split, rng)
        fact = _fill(kind, who, what)
        if fact.sentence not in seen:
            seen.add(fact.sentence)
            return fact, _fill(kind, other, else_)
    raise UserError(
        f"needle: no new {kind!r} needle after {len(seen)} samples; ask for fewer samples or "
        "more kinds of facts"
    )


def subjects(split: Split) -> list[str]:
    """The split's subjects: every second of the list."""
    return _half(words()["subjects"], split)


def _half(items: list[str], split: Split) -> list[str]:
    return items[0::2] if split == "detection" else items[1::2]


def _two(items: list[str], rng: np.random.Generator) -> tuple[str, str]:
    first, second = rng.choice(len(items), 2, replace=False)
    return items[first], items[second]


def _values(kind: str, split: Split, rng: np.random.Generator) -> tuple[str, str]:
    if kind in words()["values"]:
        return _two(_half(words()["values"][kind], split), rng)
    # Codes: even for detection, odd for evaluation.
    parity = 0 if split == "detection" else 1
    first, second = rng.choice(len(_CODES) // 2, 2, replace=False)
    return str(_CODES[2 * first + parity]), str(_CODES[2 * second + parity])


def _fill(kind: str, subject: str, value: str) -> _Fact:
    form = words()["facts"][kind]
    return _Fact(
        form["needle"].format(subject=subject, value=value),
        form["question"].format(subject=subject),
        value,
    )


def _filler(options: NeedleOptions, taken: int, rng: np.random.Generator) -> list[str]:
    """Filler sentences, shuffled again each time they run out, up to the wanted words."""
    sentences: list[str] = []
    pool: list[str] = []
    while taken < options.words:
        if not pool:
            pool = [str(s) for s in rng.permutation(words()["filler"])]
        sentences.append(pool.pop())
        taken += len(sentences[-1].split())
    return sentences


def _sample(
    options: NeedleOptions,
    split: Split,
    index: int,
    fact: _Fact,
    other: _Fact,
    rng: np.random.Generator,
) -> Sample:
    taken = len(fact.sentence.split()) + len(other.sentence.split())
    sentences = _filler(options, taken, rng)
    place = round((index % _DEPTHS) / (_DEPTHS - 1) * len(sentences))
    sentences.insert(place, fact.sentence)
    gaps = [g for g in range(len(sentences) + 1) if g not in (place, place + 1)]
    sentences.insert(int(rng.choice(gaps or [len(sentences)])), other.sentence)
    text = options.template.replace("{context}", " ".join(sentences))
    name = f"{split}-{options.seed}-{index}"
    return Sample(
        id=name,
        kind="needle",
        text=text.replace("{question}", fact.question),
        image=None,
        image_size=(0, 0),
        box=None,
        answer=fact.value,
        image_id=name,
        group=name,
        needle=fact.sentence,
    )
