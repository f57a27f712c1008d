"""Image processor files of a checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_ports.configs import read_json
from model_ports.errors import UserError


def image_settings(folder: Path) -> tuple[str, dict[str, Any]]:
    """The image processor's settings, and where they are, as messages name it.

    They are the part ``image_processor`` of ``processor_config.json``, as transformers 5 writes
    it and prefers it, or else all of ``preprocessor_config.json``. Empty without either.

    Raises:
        UserError: a file that is not what it should be.
    """
    nested, plain = folder / "processor_config.json", folder / "preprocessor_config.json"
    inner = read_json(nested).get("image_processor") if nested.is_file() else None
    if inner:
        if not isinstance(inner, dict):
            raise UserError(f"{nested}: image_processor = {inner!r}; expected an object")
        return f"{nested.name}: image_processor", inner
    return plain.name, read_json(plain) if plain.is_file() else {}


def check_settings(folder: Path, kind: str, wanted: Mapping[str, Any]) -> None:
    """Refuse image processor settings that a port does not follow.

    Args:
        folder: may hold image processor files.
        kind: class name that the files state, up to a suffix such as ``Fast``.
        wanted: the one value that the port honours, of each setting that a file may state.

    Raises:
        UserError: another class, or another value.
    """
    _, settings = image_settings(folder)
    stated = str(settings.get("image_processor_type", kind))
    if not stated.startswith(kind):
        raise UserError(f"{folder}: image_processor_type = {stated!r}; expected {kind}")
    for name, value in wanted.items():
        if settings.get(name, value) != value:
            raise UserError(
                f"{folder}: the image processor has {name} = {settings[name]!r}; this port "
                f"honours {value!r}"
            )
