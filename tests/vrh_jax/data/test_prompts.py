"""Prompts: the table is complete, has sources and is checked; a study's own prompts win."""

import copy
from pathlib import Path

import pytest
import yaml

from model_ports.errors import UserError
from model_ports.registry import ports
from vrh_jax.config import ModelSettings
from vrh_jax.data import prompts
from vrh_jax.data.prompts import (
    Expression,
    TaskPrompt,
    Wording,
    check_names,
    prompt_grid,
    prompt_table,
    read_table,
    task_prompt,
)
from vrh_jax.data.registry import task_names
from vrh_jax.data.sample import Sample

MODELS = (
    "qwen2.5-vl-7b qwen3-vl-8b internvl3-8b internvl3.5-8b internvl2.5-8b llava-next-llama3-8b "
    "magma-8b paligemma2-10b deepseek-vl2-small glm-4.6v-flash phi-4-reasoning-vision-15b"
).split()
GROUNDING = ("refcoco", "refcocoplus", "refcocog", "refspatial", "toloka")
QUESTIONS = (
    "vaw", "spatial457", "spatialrgpt", "cv_bench", "mmstar", "countbench", "mathvista"
)  # fmt: skip
ANY = ModelSettings(name="m", source="x")
RAW = yaml.safe_load(Path(prompts.__file__).with_name("prompts.yaml").read_text(encoding="utf-8"))


def sample(kind="text", text="the cat", choices=(), precision=None):
    return Sample(
        "s", kind, text, None, (0, 0), None, "b", "i", "i", choices, precision=precision
    )  # fmt: skip


def test_every_model_has_a_prompt_for_every_benchmark():
    grid = prompt_grid()
    assert set(grid) == {(m, b) for m in MODELS for b in (*GROUNDING, *QUESTIONS)}
    for (model, benchmark), by_kind in grid.items():
        assert benchmark in task_names()
        assert ("grounding" in by_kind) == (benchmark in GROUNDING)
        assert set(prompt_grid()[model, "mathvista"]) == {"choice", "number", "text"}
        for kind, prompt in by_kind.items():
            said = prompt.render(sample(kind, "the red {x} cat", ("a", "b")))
            assert said.count("the red {x} cat") == 1
            assert prompt.source
            assert prompt.max_new >= 8
            assert "{text}" not in said
            assert "{choices}" not in said
            assert prompt.image_first


@pytest.mark.parametrize("port", ports(), ids=lambda port: port.family)
def test_every_port_has_its_entry(port):
    entry = prompt_table().models[port.family]
    assert entry.text_only == (port.box is None)
    assert port.box is None or set(port.names) == set(entry.names)


def test_the_table_has_a_source_everywhere():
    table = prompt_table()
    wordings = [
        *table.general.values(),
        *(w for entry in table.models.values() for w in entry.tasks.values()),
        *(w for e in table.models.values() for by in e.benchmarks.values() for w in by.values()),
        *(w for by_kind in table.benchmarks.values() for w in by_kind.values()),
    ]
    assert len(wordings) > 30
    assert all(len(w.source) > 4 for w in wordings)
    assert all(entry.order for entry in table.models.values())
    assert {type(w) for w in wordings} == {Wording, Expression}


@pytest.mark.parametrize(
    ("model", "task", "kind", "said"),
    [
        ("qwen2.5-vl-7b", "refcoco", "grounding", "Locate the cat, output its bbox"),
        ("qwen3-vl-8b", "refcocog", "grounding", "describes: <ref>the cat</ref>"),
        ("qwen3-vl-8b", "toloka", "grounding", 'description "the object that answers the question'),
        ("internvl3.5-8b", "refcoco", "grounding", "describes: <ref>the cat</ref>"),
        ("paligemma2-10b", "refcoco", "grounding", "detect the cat"),
        ("paligemma2-10b", "countbench", "count", "answer en the cat\nAnswer with a number."),
        ("deepseek-vl2-small", "refcoco", "grounding", "<|ref|>the cat<|/ref|>."),
        ("magma-8b", "refcoco", "grounding", "bounded between 0 and 1. Please provide"),
        ("glm-4.6v-flash", "refcoco", "grounding", "[[x1,y1,x2,y2], …] in the image"),
        ("phi-4-reasoning-vision-15b", "refcoco", "grounding", "refers to: the cat. Output its"),
        (
            "magma-8b",
            "cv_bench",
            "choice",
            "the cat Select from the following choices.\n(A) a\n(B)",
        ),
        ("magma-8b", "mmstar", "choice", "the cat\nOptions: A: a, B: b\nAnswer"),
        ("magma-8b", "mathvista", "choice", "Question: the cat\nChoices:\n(A) a\n(B) b"),
        ("magma-8b", "spatial457", "text", "{'Reasoning': '<your reasons>', 'Answer'"),
    ],
)
def test_wordings(model, task, kind, said):
    prompt = prompt_grid()[model, task][kind]
    assert said in prompt.render(sample(kind, choices=("a", "b") if kind == "choice" else ()))


def test_decimals_and_missing_options():
    prompt = prompt_grid()["magma-8b", "mathvista"]["number"]
    assert "an integer answer" in prompt.render(sample("number"))
    assert "one decimal place" in prompt.render(sample("number", precision=1))
    assert "two decimal places" in prompt.render(sample("number", precision=2))
    # MMStar's question keeps options that cannot be split off
    prompt = prompt_grid()["magma-8b", "mmstar"]["choice"]
    said = prompt.render(sample("choice", "Which? Options: A: x B; y"))
    assert said.startswith("Which? Options: A: x B; y\nAnswer with")


@pytest.mark.parametrize("name", MODELS)
def test_generated_tasks_and_own_files_have_prompts(name):
    model = ModelSettings(name=name, source=name)
    for task in ("organism", "jsonl", "multiple_choice", "needle"):
        for kind in ("grounding", "text", "count", "number", "choice", "needle"):
            prompt = task_prompt(model, "", kind, task=task)
            assert "the cat" in prompt.render(sample(kind, choices=("a", "b")))
    assert task_prompt(model, "", "needle").template == "{text}"


def test_models_that_think_get_room():
    for model, least in (("glm-4.6v-flash", 8192), ("phi-4-reasoning-vision-15b", 4096)):
        for by_kind in (prompt_grid()[model, task] for task in (*GROUNDING, *QUESTIONS)):
            assert all(prompt.max_new >= least for prompt in by_kind.values())
    short = task_prompt(ANY, "glm4v", "choice", {"mmstar": 5}, task="mmstar")
    assert short.max_new == 5


def test_braces_in_a_sample_mean_nothing():
    prompt = TaskPrompt("{choices}|{text}", image_first=True, max_new=1)
    said = prompt.render(sample("choice", "{choices}", ("{text}", "{letter}")))
    assert said == "A. {text}\nB. {letter}|{choices}"


def test_entries_are_found_by_source_name_and_family():
    organism = ModelSettings(name="q", source="organism:qwen")
    grounding = task_prompt(organism, "qwen2_5_vl", "grounding")
    assert grounding.template == task_prompt(ANY, "qwen2_5_vl", "grounding").template
    assert (grounding.image_first, task_prompt(ANY, "qwen2_5_vl", "text").image_first) == (
        False,
        True,
    )
    assert task_prompt(organism, "qwen2_5_vl", "count").template == "{text}"
    named = ModelSettings(name="glm-4.6v-flash", source="x")
    assert task_prompt(named, "", "text").max_new == 8192
    chosen = ModelSettings(name="m", source="x", prompts="paligemma2-10b")
    assert task_prompt(chosen, "internvl", "grounding").template == "detect {text}"
    assert task_prompt(ANY, "llama", "needle").template == "{text}"
    wrong = ModelSettings(name="m", source="x", prompts="internv")
    with pytest.raises(UserError, match="did you mean 'internvl'"):
        task_prompt(wrong, "internvl", "grounding")
    with pytest.raises(UserError, match=r"templates\.grounding"):
        task_prompt(ANY, "llama", "grounding")
    with pytest.raises(UserError, match=r"templates\.choice"):
        task_prompt(ANY, "llama", "choice")


def test_a_study_words_its_own_prompts():
    def own(**templates):
        return ModelSettings(name="m", source="x", templates=templates, image_first=False)

    ask = {"task": "toloka", "benchmark": "tools"}
    model = own(grounding="kind {text}", toloka="task {text}", tools="name {text}")
    assert task_prompt(model, "internvl", "grounding", **ask).template == "name {text}"
    assert task_prompt(model, "internvl", "grounding", task="toloka").template == "task {text}"
    assert task_prompt(model, "internvl", "grounding").template == "kind {text}"
    found = task_prompt(model, "internvl", "grounding", {"tools": 7, "grounding": 9}, **ask)
    assert (found.max_new, found.image_first) == (7, False)
    assert found.render(sample("grounding")) == "name the cat"
    # no command before, no expression around one's own words
    pali = task_prompt(own(mmstar="{text}; {choices}"), "paligemma2", "choice", task="mmstar")
    assert pali.render(sample("choice", "Q", ("a", "b"))) == "Q; A. a\nB. b"
    for template, problem in (
        ("no field", r"templates\.choice lacks \{text\}"),
        ("{text}", r"templates\.choice lacks \{choices\}"),
        ("{text} {choice} {choices}", r"unknown field \{choice\}; did you mean 'choices'"),
    ):
        with pytest.raises(UserError, match=problem):
            task_prompt(own(choice=template), "internvl", "choice")
    with pytest.raises(UserError, match="'text' samples have none"):
        task_prompt(own(text="{text} {choices}"), "internvl", "text")
    assert task_prompt(own(text='{text} as {"box": [1]}'), "internvl", "text").max_new == 32


def test_names_that_a_study_lacks_are_refused():
    check_names("max_new", ["grounding", "tools", "toloka"], {"tools": "toloka"})
    with pytest.raises(UserError, match=r"max_new: 'tolok'.*did you mean 'toloka'"):
        check_names("max_new", ["tolok"], {"tools": "toloka"})


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("models", "internvl", "imagefirst"), True, "did you mean 'image_first'"),
        (("models", "internvl", "order"), "", "models.internvl.order"),
        (("general", "text", "source"), "", "general.text.source"),
        (("general", "text", "max_new"), 0, "general.text.max_new"),
        (("general", "text", "template"), "no field", r"general.text: lacks \{text\}"),
        (("general", "text", "template"), "{text} {chois}", "did you mean 'choices'"),
        (("general", "txt"), {}, "general.txt"),
        (("benchmarks", "toloka", "grounding"), {"expression": "x"}, "source"),
    ],
)
def test_a_faulty_table_is_refused_by_name(path, value, message):
    raw = copy.deepcopy(RAW)
    *parents, last = path
    place = raw
    for name in parents:
        place = place[name]
    place[last] = value
    with pytest.raises(UserError, match=message):
        read_table(raw, "prompts.yaml")
    read_table(RAW, "prompts.yaml")
