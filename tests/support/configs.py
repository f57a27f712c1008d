"""Configs with one attribute changed."""

import copy
from collections.abc import Mapping
from typing import Any


def changed(raw: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of a config with the attribute at ``path`` (dots go inwards) set to ``value``;
    ``...`` deletes it."""
    new = copy.deepcopy(dict(raw))
    *parents, last = path.split(".")
    place = new
    for part in parents:
        place = place[part]
    place[last] = value
    if value is ...:
        del place[last]
    return new
