"""Prompts as data: which words and image order a model gets for a kind of task."""

import dataclasses
import string
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from model_ports.errors import UserError
from vrh_jax.config import ModelSettings, nearest
from vrh_jax.data.sample import Sample


@dataclasses.dataclass(frozen=True)
class TaskPrompt:
    """How one kind of task is asked.

    Attributes:
        template: with {text}, and {choices} for multiple choice.
        image_first: the image precedes the text.
        max_new: longest answer in tokens.
    """

    template: str
    image_first: bool
    max_new: int

    def render(self, sample: Sample) -> str:
        """The user turn of a sample; braces in the sample's text are left alone."""
        letters = zip(string.ascii_uppercase, sample.choices, strict=False)
        choices = "\n".join(f"{letter}. {choice}" for letter, choice in letters)
        return self.template.replace("{choices}", choices).replace("{text}", sample.text)


@cache
def prompt_table() -> dict[str, Any]:
    """The entries of prompts.yaml."""
    return dict(yaml.safe_load(Path(__file__).with_name("prompts.yaml").read_text()))


def entry_name(model: ModelSettings, family: str) -> str:
    """Name of the prompts.yaml entry of a model: asked for, the source's, the name's, family's."""
    table = prompt_table()
    if model.prompts is not None:
        if model.prompts not in table:
            raise UserError(
                f"models.{model.name}.prompts = {model.prompts!r} is not in prompts.yaml"
                f"{nearest(model.prompts, sorted(table))} (known: {', '.join(sorted(table))})"
            )
        return model.prompts
    scheme = model.source.partition(":")[0]
    for name in (scheme, model.name, family):
        if name in table:
            return name
    return family


def task_prompt(
    model: ModelSettings, family: str, kind: str, max_new: dict[str, int] | None = None
) -> TaskPrompt:
    """The prompt of a model for a kind of task.

    Args:
        model: the study's entry; its own templates win.
        family: of the model's port.
        kind: of the sample (grounding, text, choice, count, needle).
        max_new: overrides of the answer length per kind.

    Raises:
        UserError: neither the study nor prompts.yaml has a prompt for this kind.
    """
    table, empty = prompt_table(), {"image_first": True, "tasks": {}}
    entry = table.get(entry_name(model, family), empty)
    # An entry that says nothing about a kind of task is asked as its family.
    task = entry["tasks"].get(kind) or table.get(family, empty)["tasks"].get(kind)
    template = model.templates.get(kind) or (task and task["template"])
    if not template:
        raise UserError(
            f"model {model.name!r} has no prompt for {kind!r} samples; "
            f"add models.{model.name}.templates.{kind} to the study, with {{text}} in it"
        )
    if "{text}" not in template:
        raise UserError(f"models.{model.name}.templates.{kind} lacks {{text}}: {template!r}")
    first = entry["image_first"] if model.image_first is None else model.image_first
    limit = (max_new or {}).get(kind) or (task["max_new"] if task else 64)
    return TaskPrompt(template, bool(first), int(limit))
