"""Prompts as data: what a model is asked on a benchmark (prompts.yaml), and in which order."""

import dataclasses
import re
import string
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import Field, model_validator

from model_ports.errors import UserError
from vrh_jax.config import ModelSettings
from vrh_jax.data.sample import Sample, TaskKind
from vrh_jax.strict import Positive, Strict, nearest, parse_settings

FIELDS = ("text", "choices")
KINDS: tuple[str, ...] = get_args(TaskKind)
_FIELD = re.compile(r"\{([A-Za-z_]+)\}")
_FALLBACK = 64  # tokens, for a kind of task that only a study words


@dataclasses.dataclass(frozen=True)
class TaskPrompt:
    """How one kind of task is asked.

    Attributes:
        template: with {text}, and {choices} for multiple choice.
        image_first: the image precedes the text.
        max_new: longest answer in tokens.
        option: form of one option, with {letter} and {choice}.
        join: between options.
        expression: what becomes of the sample's text before it enters the template.
        precise: templates for answers with so many decimals.
        source: where the wording comes from.
    """

    template: str
    image_first: bool
    max_new: int
    option: str = "{letter}. {choice}"
    join: str = "\n"
    expression: str = "{text}"
    precise: Mapping[int, str] = dataclasses.field(default_factory=dict)
    source: str = ""

    def render(self, sample: Sample) -> str:
        """The user turn of a sample; braces in the sample's text are left alone.

        A line with {choices} is left out for a sample whose text holds its options.
        """
        template = self.template
        if sample.precision is not None:
            template = self.precise.get(sample.precision, template)
        if not sample.choices:
            template = re.sub(r"\n[^\n]*\{choices\}", "", template).replace("{choices}", "")
        letters = zip(string.ascii_uppercase, sample.choices, strict=False)
        options = (
            _fill(self.option, {"letter": letter, "choice": choice}) for letter, choice in letters
        )
        text = _fill(self.expression, {"text": sample.text})
        return _fill(template, {"choices": self.join.join(options), "text": text})


def _fill(template: str, values: Mapping[str, str]) -> str:
    """Fields replaced in one pass, so that braces in the values mean nothing."""
    return _FIELD.sub(lambda m: values.get(m[1], m[0]), template)


class Wording(Strict):
    """A prompt of prompts.yaml."""

    template: str
    max_new: Positive
    source: str = Field(min_length=1)
    option: str = "{letter}. {choice}"
    join: str = "\n"
    precise: dict[int, str] = Field({})

    @model_validator(mode="after")
    def _fields(self) -> "Wording":
        for template in (self.template, *self.precise.values()):
            problem = wrong_template(template)
            if problem:
                raise ValueError(problem)
        return self


class Expression(Strict):
    """How a benchmark's text becomes the expression of a model's own grounding prompt."""

    expression: str
    source: str = Field(min_length=1)


class ModelPrompts(Strict):
    """A family's entry."""

    names: tuple[str, ...]
    image_first: bool
    order: str = Field(min_length=1, description="source of image_first")
    thinking: int = Field(0, ge=0)
    before: str = ""
    text_only: bool = False
    tasks: dict[TaskKind, Wording]
    benchmarks: dict[str, dict[TaskKind, Wording]]


class PromptTable(Strict):
    """prompts.yaml."""

    models: dict[str, ModelPrompts]
    general: dict[TaskKind, Wording]
    benchmarks: dict[str, dict[TaskKind, Wording | Expression]]


@cache
def prompt_table() -> PromptTable:
    """The package's prompts."""
    path = Path(__file__).with_name("prompts.yaml")
    return read_table(yaml.safe_load(path.read_text(encoding="utf-8")), path.name)


def read_table(raw: Any, where: str) -> PromptTable:
    """Check the plain values of a prompts file.

    Raises:
        UserError: naming the entry and what is wrong with it.
    """
    return parse_settings(PromptTable, raw, where)


def wrong_template(template: str, kind: str = "") -> str:
    """What is wrong with a template; "" if nothing."""
    fields = _FIELD.findall(template)
    if "text" not in fields:
        return f"lacks {{text}}: {template!r}"
    unknown = next((f for f in fields if f not in FIELDS), None)
    if unknown:
        hint = nearest(unknown, list(FIELDS))
        return f"has the unknown field {{{unknown}}}{hint} (known: {{text}}, {{choices}})"
    if kind and kind != "choice" and "choices" in fields:
        return f"has {{choices}}, but {kind!r} samples have none"
    if kind == "choice" and "choices" not in fields:
        return f"lacks {{choices}}: {template!r}"
    return ""


def entry_name(model: ModelSettings, family: str) -> str:
    """Name of a model's entry: the one asked for, the source's, the model's, its family's.

    Raises:
        UserError: the entry that the study asks for does not exist.
    """
    models = prompt_table().models
    by_name = {name: entry for entry, found in models.items() for name in (entry, *found.names)}
    if model.prompts is not None:
        if model.prompts not in by_name:
            raise UserError(
                f"models.{model.name}.prompts = {model.prompts!r} is not in prompts.yaml"
                f"{nearest(model.prompts, sorted(by_name))} (known: {', '.join(sorted(by_name))})"
            )
        return by_name[model.prompts]
    scheme = model.source.partition(":")[0]
    return next((by_name[n] for n in (scheme, model.name, family) if n in by_name), family)


def task_prompt(
    model: ModelSettings,
    family: str,
    kind: str,
    max_new: Mapping[str, int] | None = None,
    *,
    task: str = "",
    benchmark: str = "",
) -> TaskPrompt:
    """The prompt of a model for samples of a benchmark.

    Args:
        model: the study's entry; its own templates win.
        family: of the model's port.
        kind: of the samples (grounding, text, choice, count, number, needle).
        max_new: overrides of the answer length, per benchmark, task or kind.
        task: the benchmark's task ("refcoco", "mmstar", ...); "" for none in particular.
        benchmark: what the study calls the benchmark.

    Raises:
        UserError: there is no prompt for this kind, or the study's own is unusable.
    """
    names = [name for name in (benchmark, task, kind) if name]
    own = next((name for name in names if name in model.templates), None)
    found, expression = _wording(entry_name(model, family), family, kind, task)
    if own is not None:
        template = model.templates[own]
        problem = wrong_template(template, kind)
        if problem:
            raise UserError(f"models.{model.name}.templates.{own} {problem}")
        limit = found.max_new if found else _FALLBACK
        found = Wording(template=template, max_new=limit, source="the study")
        expression = "{text}"
    if found is None:
        raise UserError(
            f"model {model.name!r} has no prompt for {kind!r} samples; "
            f"add models.{model.name}.templates.{kind} to the study, with {{text}} in it"
        )
    entry = prompt_table().models.get(entry_name(model, family))
    # A grounding prompt is a command of its own, and a needle's text a whole context.
    plain = own is not None or kind in ("grounding", "needle")
    before = "" if plain or entry is None else entry.before
    lengths = max_new or {}
    limit = next((lengths[name] for name in names if name in lengths), 0)
    first = entry.image_first if entry else True
    return TaskPrompt(
        template=before + found.template,
        image_first=first if model.image_first is None else model.image_first,
        max_new=limit or max(found.max_new, entry.thinking if entry else 0),
        option=found.option,
        join=found.join,
        expression=expression,
        precise={n: before + template for n, template in found.precise.items()},
        source=found.source,
    )


def _wording(entry: str, family: str, kind: str, task: str) -> tuple[Wording | None, str]:
    """(the wording of the table, how the text becomes an expression)."""
    table = prompt_table()
    # An entry that says nothing about a kind of task is asked as its family.
    models = [table.models[name] for name in (entry, family) if name in table.models]
    asked: Any = kind
    shared = table.benchmarks.get(task, {}).get(asked)
    expression = shared.expression if isinstance(shared, Expression) else "{text}"
    found = [model.benchmarks.get(task, {}).get(asked) for model in models]
    found += [shared if isinstance(shared, Wording) else None]
    found += [model.tasks.get(asked) for model in models]
    if not any(model.text_only for model in models):
        found.append(table.general.get(asked))
    return next((wording for wording in found if wording is not None), None), expression


def check_names(where: str, names: Collection[str], benchmarks: Mapping[str, str]) -> None:
    """Refuse settings for a benchmark, task or kind that a study does not have.

    Args:
        where: the setting, for the message.
        names: its keys.
        benchmarks: the study's benchmarks, name -> task.

    Raises:
        UserError: naming the key and the nearest known one.
    """
    known = sorted({*KINDS, *benchmarks, *benchmarks.values()})
    for name in names:
        if name not in known:
            raise UserError(
                f"{where}: {name!r} is no benchmark, task or kind of this study"
                f"{nearest(name, known)} (known: {', '.join(known)})"
            )


def prompt_grid() -> dict[tuple[str, str], dict[str, TaskPrompt]]:
    """(model of the study, task) -> kind -> prompt, for every model and public benchmark."""
    table = prompt_table()
    return {
        (name, task): {
            kind: task_prompt(ModelSettings(name=name, source=name), family, kind, task=task)
            for kind in kinds
        }
        for family, entry in table.models.items()
        for name in entry.names
        for task, kinds in table.benchmarks.items()
    }
