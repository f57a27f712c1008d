"""Image processor files of a checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

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
        return f"{nested}: image_processor", inner
    return str(plain), read_json(plain) if plain.is_file() else {}


def check_settings(
    where: str, settings: Mapping[str, Any], honoured: Mapping[str, Any], kind: str = ""
) -> None:
    """Refuse image processor settings that a port does not follow.

    Args:
        where: how messages name the settings.
        settings: as a file states them; none has to be there.
        honoured: of a setting, the value that the port follows, or a tuple of such values.
        kind: class name that the settings may state, up to a suffix such as ``Fast``.

    Raises:
        UserError: another class, or another value.
    """
    stated = str(settings.get("image_processor_type", kind))
    if not stated.startswith(kind):
        raise UserError(f"{where}: image_processor_type = {stated!r}; expected {kind}")
    for name, value in honoured.items():
        allowed = value if isinstance(value, tuple) else (value,)
        if name in settings and settings[name] not in allowed:
            raise UserError(
                f"{where}: {name} = {settings[name]!r}; this port honours "
                f"{' or '.join(map(repr, allowed))}"
            )


def usual_settings(
    mean: tuple[float, ...],
    std: tuple[float, ...],
    resample: Image.Resampling = Image.Resampling.BICUBIC,
) -> dict[str, Any]:
    """What nearly every image processor states: resized, values divided by 255, normalised."""
    return {
        "image_mean": list(mean),
        "image_std": list(std),
        "resample": int(resample),
        "rescale_factor": 1 / 255,
        **dict.fromkeys(("do_resize", "do_rescale", "do_normalize"), True),
    }
