"""Image processor files of a checkpoint whose settings must be those that a port follows."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_ports.errors import UserError


def check_settings(folder: Path, kind: str, wanted: Mapping[str, Any]) -> None:
    """Refuse image processor settings that a port does not follow.

    Args:
        folder: may hold preprocessor_config.json (published) or processor_config.json
            (transformers 5).
        kind: class name that the files state, up to a suffix such as ``Fast``.
        wanted: the one value that the port honours, of each setting that a file may state.

    Raises:
        UserError: another class, or another value.
    """
    settings: dict[str, Any] = {}
    for name in ("preprocessor_config.json", "processor_config.json"):
        path = folder / name
        if not settings and path.is_file():
            found = json.loads(path.read_text())
            settings = found.get("image_processor", found) or {}
    stated = str(settings.get("image_processor_type", kind))
    if not stated.startswith(kind):
        raise UserError(f"{folder}: image_processor_type = {stated!r}; expected {kind}")
    for name, value in wanted.items():
        if settings.get(name, value) != value:
            raise UserError(
                f"{folder}: the image processor has {name} = {settings[name]!r}; this port "
                f"honours {value!r}"
            )
