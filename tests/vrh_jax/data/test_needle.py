"""The needle task: distinct, deterministic, disjoint between the splits."""

import numpy as np
import pytest
from support.parity import save_tokenizer

from model_ports.errors import UserError
from model_ports.text import TextProcessor
from vrh_jax.answers.judge import judge
from vrh_jax.config import BenchmarkSettings
from vrh_jax.data.needle import NeedleOptions, load, words
from vrh_jax.data.registry import load as load_benchmark
from vrh_jax.data.registry import task

COUNT = 120


def samples(split="evaluation", count=COUNT, **options):
    return load(NeedleOptions(**options), split, count)


def test_samples_are_distinct_and_well_formed() -> None:
    found = samples()
    assert len({s.needle for s in found}) == COUNT
    assert len({s.id for s in found}) == len({s.text for s in found}) == COUNT
    for s in found:
        assert s.kind == "needle"
        assert s.text.count(s.needle) == 1
        assert s.text.count(s.answer) == 1, "the answer is said once, by the needle"
        assert s.answer in s.needle
        assert s.box is None
        assert s.image is None


def test_the_distractor_is_of_the_same_kind_with_another_value() -> None:
    for s in samples(facts=("code",)):
        others = [part for part in s.text.split(". ") if part.startswith("The secret code of")]
        assert len(others) == 2
        assert len({o.split()[-1].rstrip(".") for o in others}) == 2
        assert len({o.split()[4] for o in others}) == 2


@pytest.mark.parametrize("seed", [0, 7])
def test_same_seed_same_samples_and_a_larger_count_keeps_the_first(seed) -> None:
    assert samples(seed=seed, count=40) == samples(seed=seed)[:40]
    texts = {s.text for s in samples(seed=seed)}
    assert not texts & {s.text for s in samples(seed=seed + 1)}


@pytest.mark.parametrize("seed", [0, 3])
def test_splits_share_no_needle_subject_value_or_image(seed) -> None:
    detection, evaluation = samples("detection", seed=seed), samples("evaluation", seed=seed)
    assert not {s.answer for s in detection} & {s.answer for s in evaluation}
    assert not {s.image_id for s in detection} & {s.image_id for s in evaluation}
    names = words()["subjects"]

    def said(split) -> set[str]:
        return {name for s in split for name in names if f" {name} " in s.text}

    assert not said(detection) & said(evaluation)
    filler = {s.text.split(". ")[3] for s in detection}
    assert len(filler) > 10


def test_depths_are_spread_over_the_context() -> None:
    depth = np.array([s.text.index(s.needle) / len(s.text) for s in samples()])
    counts, _ = np.histogram(depth, bins=4, range=(0, 1))
    assert depth.min() == 0
    assert (counts > COUNT / 10).all()


@pytest.mark.parametrize("length", [60, 150, 900])
def test_length_in_words(length) -> None:
    template = "{context}|{question}"
    for s in samples(count=20, words=length, template=template):
        context = s.text.split("|")[0].split()
        assert length <= len(context) < length + 20


def test_filler_and_lists_are_clean() -> None:
    table = words()
    text = " ".join(table["filler"])
    assert not any(c.isdigit() for c in text)
    lower = {w.strip(".,").lower() for w in text.split()}
    for name in table["subjects"]:
        assert name.lower() not in lower
    for kind, values in table["values"].items():
        assert len(set(values)) == len(values), kind
        for value in values:
            assert value.lower() not in text.lower().split(), value
    assert len(set(table["subjects"])) == len(table["subjects"])
    assert len(set(table["filler"])) == len(table["filler"])


def test_the_judge_takes_the_needle_and_refuses_the_distractor() -> None:
    for s in samples(count=24):
        assert judge(s, s.needle).correct
        assert judge(s, s.answer).correct
        wrong = next(x for x in samples(count=24) if x.answer != s.answer)
        assert judge(s, wrong.needle).failure == "wrong_answer"
        assert judge(s, "").failure == "parse_failure"


def test_needle_tokens_are_found_in_the_prompt(tmp_path) -> None:
    save_tokenizer(tmp_path, ["<eos>", "<pad>"], "", eos="<eos>", pad="<pad>")
    processor = TextProcessor.load(tmp_path, 400)
    for s in samples(count=12):
        prompt = processor.prepare(s.text)
        slots = processor.token_slots(prompt, s.needle)
        decoded = processor.tokenizer.decode(prompt.tokens[slots[0] : slots[-1] + 1])
        assert s.needle in decoded
        assert len(decoded) <= len(s.needle) + 2


def test_the_registry_makes_them() -> None:
    settings = BenchmarkSettings(task="needle", options={"words": 60})
    found, generated = load_benchmark("needles", settings, "detection", 5)
    assert (len(found), generated) == (5, True)
    assert task("needle").options is NeedleOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"facts": ("colour",)}, "colour"),
        ({"template": "{context}"}, "question"),
        ({"template": "{question}"}, "context"),
    ],
)
def test_bad_options(options, message) -> None:
    with pytest.raises(UserError, match=message):
        samples(**options)


def test_unknown_option_is_named() -> None:
    settings = BenchmarkSettings(task="needle", options={"word": 60})
    with pytest.raises(UserError, match="words"):
        load_benchmark("needles", settings, "detection", 5)


def test_running_out_of_needles() -> None:
    with pytest.raises(UserError, match="no new 'trade' needle"):
        samples(count=5000, facts=("trade",), words=40)
