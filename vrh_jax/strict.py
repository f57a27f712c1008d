"""Settings that are read strictly: an unknown key is an error that names the nearest known one."""

import difflib
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from model_ports.errors import UserError

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]
Positive = Annotated[int, Field(gt=0)]


def nearest(name: str, known: list[str]) -> str:
    """A hint naming the known word closest to ``name``."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}?" if close else ""


class Strict(BaseModel):
    """Immutable settings that refuse unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: Any) -> Any:
        known = sorted(cls.model_fields)
        for key in value if isinstance(value, dict) else ():
            if key not in known:
                hint = nearest(str(key), known)
                raise ValueError(f"unknown key {key!r}{hint} (known: {', '.join(known)})")
        return value


S = TypeVar("S", bound=Strict)


def parse_settings(cls: type[S], raw: Any, where: str) -> S:
    """Validate plain values; a failure is one UserError with a line per problem."""
    try:
        return cls.model_validate(raw)
    except ValidationError as error:
        lines = []
        problems = error.errors()
        for problem in problems:
            # A list whose only entry is wrong counts as empty, too, which says nothing new.
            inside = any(len(p["loc"]) > len(problem["loc"]) for p in problems)
            if problem["type"] == "too_short" and inside:
                continue
            path = ".".join(str(part) for part in problem["loc"])
            text = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{where}: {path + ': ' if path else ''}{text}")
        raise UserError("\n".join(lines)) from None


class _UniqueKeys(yaml.SafeLoader):
    """YAML in which a key given twice is an error, not a silent override."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice", node.start_mark
                )
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """A mapping from a YAML file.

    Raises:
        UserError: no such file, no YAML, a key given twice, or something else than a mapping.
    """
    try:
        raw = yaml.load(path.read_text(), Loader=_UniqueKeys)  # noqa: S506 - a SafeLoader
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; give the path of a YAML file") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read as YAML: {error}") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path}: expected a mapping of settings, found {type(raw).__name__}")
    return raw
