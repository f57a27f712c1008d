"""study.json: what a folder's study is, so that a run continues it or refuses."""

import dataclasses
import json
import textwrap
from pathlib import Path
from typing import Any

from model_ports.errors import UserError
from vrh_jax.config import StudyConfig
from vrh_jax.engine.store import write_json
from vrh_jax.study.layout import Layout

MOST_SHOWN = 6  # differences of settings that an error lists


@dataclasses.dataclass
class State:
    """What ``study.json`` holds.

    Attributes:
        settings: of the study, as plain values.
        hash: of the settings.
        fingerprints: of the loaded models.
        wall_s: seconds that earlier, interrupted runs worked.
        prompts: "MODEL BENCHMARK KIND" -> wording, order and length of the prompt.
    """

    settings: dict[str, Any]
    hash: str
    fingerprints: dict[str, str]
    wall_s: float = 0.0
    prompts: dict[str, Any] = dataclasses.field(default_factory=dict)

    def settle_prompts(self, prompts: dict[str, Any], out: Path) -> None:
        """Keep the prompts, or refuse those of another version of prompts.yaml.

        Raises:
            UserError: a prompt is not the one that this study began with.
        """
        changed = differences(self.prompts, prompts) if self.prompts else []
        if changed:
            raise UserError(
                f"{out}: the prompts have changed since this study began ({_brief(changed)}). "
                "Use another --out, or word them in the study (models.NAME.templates)"
            )
        self.prompts = prompts

    def save(self, layout: Layout) -> None:
        """Write study.json."""
        write_json(layout.study, dataclasses.asdict(self))


def read_state(layout: Layout) -> State:
    """What study.json holds.

    Raises:
        UserError: there is none, or it is something else.
    """
    try:
        return State(**json.loads(layout.study.read_text()))
    except FileNotFoundError:
        raise UserError(f"{layout.out} holds no study (no study.json)") from None
    except (json.JSONDecodeError, TypeError) as error:
        raise UserError(f"{layout.study}: not a study's file ({error})") from None


def open_state(config: StudyConfig, layout: Layout) -> State:
    """Continue the study of a folder, or begin one in an empty folder.

    Raises:
        UserError: the folder holds something else, or a study with other settings.
    """
    fresh = State(config.settings(), config.hash(), {})
    if layout.study.exists():
        state = read_state(layout)
        if state.hash != fresh.hash:
            changed = _brief(differences(state.settings, fresh.settings))
            raise UserError(
                f"{layout.out} holds a study with other settings ({changed}). Use another --out, "
                "or remove the folder to start again"
            )
        return state
    if _strangers(layout.out):
        raise UserError(
            f"{layout.out} is not empty and holds no study (no study.json); choose another --out"
        )
    return fresh


def _strangers(folder: Path) -> bool:
    return folder.is_dir() and any(not p.name.startswith(".") for p in folder.iterdir())


def _brief(changes: list[str]) -> str:
    """The first few of many changes, long values cut."""
    shown = [textwrap.shorten(change, 160, placeholder=" ...") for change in changes[:MOST_SHOWN]]
    more = len(changes) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """Which settings differ, one ``key: old -> new`` each."""
    if isinstance(old, dict) and isinstance(new, dict):
        out = []
        for key in sorted({*old, *new}):
            path = f"{where}.{key}" if where else str(key)
            out += differences(old.get(key), new.get(key), path)
        return out
    both = isinstance(old, list) and isinstance(new, list)
    if both and len(old) == len(new) and any(isinstance(v, dict) for v in old):
        pairs = enumerate(zip(old, new, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{where}[{i}]")]
    return [] if old == new else [f"{where}: {old!r} -> {new!r}"]
