"""Write docs/settings.md from the study's config classes: ``python docs/make_settings.py``."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from vrh_jax import config
from vrh_jax.data.registry import task, task_names


def task_options() -> Iterator[tuple[str, type[BaseModel]]]:
    """A section per class of options, for all tasks that have them in common."""
    names: dict[type[BaseModel], list[str]] = {}
    for name in task_names():
        names.setdefault(task(name).options, []).append(f"`{name}`")
    for options, tasks in names.items():
        yield f"`options` of task {', '.join(tasks)}", options


SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("The study", config.StudyConfig),
    ("`models`, a list", config.ModelSettings),
    ("`benchmarks`, by name", config.BenchmarkSettings),
    *task_options(),
    ("`detection`", config.DetectionSettings),
    ("`evaluation`, a list", config.EvaluationSettings),
    ("`scoring`", config.ScoringSettings),
    ("`controls`", config.ControlSettings),
    ("`transfer`", config.TransferSettings),
    ("`pairs` of `transfer`, a list", config.TransferPair),
    ("`batch`", config.BatchSettings),
    ("`mesh`", config.MeshSettings),
)


def default(value: Any) -> str:
    """A default as YAML would have it."""
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "none"
    return f"`{json.dumps(value)}`"


def page() -> Iterator[str]:
    """Lines of the page."""
    yield "# Settings of a study"
    yield ""
    yield "Made by `docs/make_settings.py` from `vrh_jax/config.py`; do not edit."
    for title, settings in SECTIONS:
        described = [(n, f) for n, f in settings.model_fields.items() if f.description]
        yield from ("", f"## {title}", "", (settings.__doc__ or "").strip().splitlines()[0], "")
        yield from ("| key | meaning | default |", "| --- | --- | --- |")
        for name, field in described:
            yield f"| `{name}` | {field.description} | {default(field.default)} |"


def main() -> None:
    """Write the page beside this file."""
    Path(__file__).with_name("settings.md").write_text("\n".join(page()) + "\n")


if __name__ == "__main__":
    main()
