"""`vrh data check`: which benchmarks to check, and how the findings read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from model_ports.errors import UserError
from vrh_jax.config import BenchmarkSettings, load_config
from vrh_jax.data.check import UNITS, check
from vrh_jax.data.recognise import Found, recognise
from vrh_jax.data.registry import load

# Tasks that generate this many samples are checked on as many.
_GENERATED = 200


def check_files(
    path: Path | None,
    task: str | None,
    images: Path | None,
    options: Sequence[str],
    *,
    decode: bool,
) -> list[dict[str, Any]]:
    """The findings on each benchmark of a study, of a folder, or of one task.

    Args:
        path: annotations, or a study's YAML file.
        task: name of a task; None recognises it.
        images: option ``images`` of the tasks.
        options: further options, KEY=VALUE.

    Raises:
        UserError: nothing to check, or files that cannot be read.
    """
    if path is None and task is None:
        raise UserError("give the path of a benchmark's files, or a task with --task")
    given = dict(_option(text) for text in options)
    if images is not None:
        given["images"] = images
    if path is not None and path.suffix in (".yaml", ".yml") and task is None:
        settings = load_config(path).benchmarks
        return [
            _check(name, s.task, {**s.options, **given}, decode=decode)
            for name, s in settings.items()
        ]
    if task is not None:
        found = [Found(task, {} if path is None else {"path": path})]
    else:
        assert path is not None  # noqa: S101 - one of both is given
        found = recognise(path)
    return [_check(f.task, f.task, {**f.options, **given}, decode=decode) for f in found]


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"option {text!r}: expected KEY=VALUE")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise UserError(f"option {text!r}: the value is not YAML ({error})") from None


def _check(name: str, task: str, options: dict[str, Any], *, decode: bool) -> dict[str, Any]:
    settings = BenchmarkSettings(task=task, options=options)
    source, generated = load(name, settings, "evaluation", _GENERATED)
    plain = {
        k: v if isinstance(v, int | float | str | bool) else str(v) for k, v in options.items()
    }
    found = check(task, source, split=str(options.get("split", "")), decode=decode)
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
