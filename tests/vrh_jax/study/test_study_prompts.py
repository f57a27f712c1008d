"""A study keeps the prompts it began with, and says them."""

from pathlib import Path
from typing import Any

import pytest

from model_ports.errors import UserError
from vrh_jax.study.state import State


def wording(template: str) -> dict[str, Any]:
    return {"m tools grounding": {"template": template, "max_new": 96}}


def test_changed_prompts_are_refused():
    state = State({}, "hash", {})
    state.settle_prompts(wording("Locate {text}."), Path("out"))
    assert state.prompts == wording("Locate {text}.")
    state.settle_prompts(wording("Locate {text}."), Path("out"))
    with pytest.raises(UserError, match=r"out: the prompts have changed.*m tools grounding"):
        state.settle_prompts(wording("Find {text}."), Path("out"))
    assert state.prompts == wording("Locate {text}.")


def test_folders_of_older_versions_are_continued():
    state = State(settings={}, hash="h", fingerprints={}, wall_s=1.0)
    state.settle_prompts(wording("Locate {text}."), Path("out"))
    assert state.prompts
