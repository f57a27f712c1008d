"""`vrh data check`: which benchmarks to check, and how the findings read."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from model_ports.errors import UserError
from vrh_jax.config import BenchmarkSettings, load_config
from vrh_jax.data.check import UNITS, check
from vrh_jax.data.recognise import recognise
from vrh_jax.data.registry import load

# Tasks that generate this many samples are checked on as many.
GENERATED = 200


def check_files(asked: "Asked", *, decode: bool) -> list[dict[str, Any]]:
    """The findings on each benchmark that is asked for.

    Raises:
        UserError: nothing to check, or files that cannot be read.
    """
    return [_check(name, settings, decode=decode) for name, settings in asked.benchmarks()]


@dataclasses.dataclass(frozen=True)
class Asked:
    """Benchmarks named on a command line.

    Attributes:
        path: annotations, or a study's YAML file.
        task: name of a task; None recognises it.
        images: option ``images`` of the tasks.
        options: further options, KEY=VALUE.
    """

    path: Path | None
    task: str | None
    images: Path | None
    options: Sequence[str]

    def benchmarks(self) -> list[tuple[str, BenchmarkSettings]]:
        """(name, settings) of each.

        Raises:
            UserError: none is named, or nothing is recognised.
        """
        given = dict(_option(text) for text in self.options)
        if self.images is not None:
            given["images"] = self.images
        if self.task is not None:
            named = {} if self.path is None else {"path": self.path}
            return [(self.task, BenchmarkSettings(task=self.task, options={**named, **given}))]
        if self.path is None:
            raise UserError("give the path of a benchmark's files, or a task with --task")
        if self.path.suffix in (".yaml", ".yml"):
            return [
                (name, BenchmarkSettings(task=s.task, options={**s.options, **given}))
                for name, s in load_config(self.path).benchmarks.items()
            ]
        return [
            (found.task, BenchmarkSettings(task=found.task, options={**found.options, **given}))
            for found in recognise(self.path)
        ]


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"option {text!r}: expected KEY=VALUE")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise UserError(f"option {text!r}: the value is not YAML ({error})") from None


def _check(name: str, settings: BenchmarkSettings, *, decode: bool) -> dict[str, Any]:
    options = settings.options
    source, generated = load(name, settings, "evaluation", GENERATED)
    plain = {
        k: v if isinstance(v, int | float | str | bool) else str(v) for k, v in options.items()
    }
    found = check(settings.task, source, split=str(options.get("split", "")), decode=decode)
    return {"name": name, "options": plain, "generated": generated, **found}


def show(report: dict[str, Any]) -> str:
    """A report as text."""
    options = ", ".join(f"{k}: {v}" for k, v in report["options"].items())
    lines = [f"{report['name']} ({options})" if options else report["name"]]
    counts = [f"{report[u]:,} {u.replace('_', ' ')}" for u in UNITS if u in report]
    lines.append("  " + ", ".join(counts))
    lines += [f"  = {line}" for line in report["matches"]]
    if not report["matches"] and not report["generated"]:
        lines.append("  matches no published count")
    for part, title in (("boxes", "boxes"), ("texts", "texts"), ("image_files", "images")):
        lines += _part(title, report[part])
    if report["unusable"]:
        lines += _part("unusable rows", {k: report[k] for k in ("unusable", "examples")})
    return "\n".join(lines)


def _part(title: str, found: dict[str, Any]) -> list[str]:
    numbers = [
        f"{key.replace('_', ' ')} {value}"
        for key, value in found.items()
        if key not in ("examples", "hints")
    ]
    lines = [f"  {title}: {', '.join(numbers)}"]
    lines += [f"    {k.replace('_', ' ')}, e.g. {v}" for k, v in found.get("examples", {}).items()]
    return lines + [f"    ! {hint}" for hint in found.get("hints", [])]
