"""Matching the tensors of a file against one layout of a port."""

import dataclasses
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from model_ports.convert.headers import TensorInfo
from model_ports.convert.pieces import Piece
from model_ports.convert.rules import Rule
from model_ports.errors import UserError

_SHOWN = 12


@dataclasses.dataclass(frozen=True)
class Match:
    """How well a layout fits.

    Attributes:
        pieces: parameter -> its pieces, complete only where nothing is missing.
        copies: file tensor -> parameter that it repeats.
        skipped: file tensors without effect.
        missing, extra: names. misshapen: sentences.
    """

    layout: str
    pieces: Mapping[str, tuple[Piece, ...]]
    copies: Mapping[str, str]
    skipped: tuple[str, ...]
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    misshapen: tuple[str, ...]

    @property
    def faults(self) -> int:
        """How many things do not fit."""
        return len(self.missing) + len(self.extra) + len(self.misshapen)


def instances(
    rule: Rule, shape: tuple[int, ...]
) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """(tensor name, index on the stacked axes, shape of the parameter slice) for every layer
    (and expert) of a rule."""
    axes = [axis for axis in ("{l}", "{e}") if axis in rule.key]
    found = []
    for lead in itertools.product(*map(range, shape[: len(axes)])):
        name = rule.key
        for axis, index, start in zip(axes, lead, (rule.first, 0), strict=False):
            name = name.replace(axis, str(start + index))
        found.append((name, lead, shape[len(axes) :]))
    return found


def table_faults(
    family: str, layout: str, rules: Sequence[Rule], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """A port's table must itself fill every parameter once and use every row block once."""
    filled: dict[str, list[str]] = defaultdict(list)
    used: dict[tuple[str, int], list[Rule]] = defaultdict(list)
    for rule in rules:
        if rule.use == "fill":
            filled[rule.param].append(rule.key)
            used[rule.key, rule.first].append(rule)
    where = f"port {family}, layout {layout}"
    for path in sorted(set(shapes) | set(filled)):
        if path not in shapes:
            raise UserError(f"{where}: {filled[path][0]} fills {path}, which the model lacks")
        if len(filled[path]) != 1:
            raise UserError(f"{where}: parameter {path} is filled by {filled[path]}, not by one")
    for (key, _), sharing in used.items():
        blocks = sorted(block for rule in sharing for block in rule.blocks)
        cuts = {(rule.groups, rule.count) for rule in sharing}
        if len(cuts) != 1 or blocks != list(range(sharing[0].count)):
            found = [(rule.rows, rule.span, rule.groups) for rule in sharing]
            raise UserError(f"{where}: the row blocks {found} of {key} do not cover it once")


def match_layout(
    layout: str,
    rules: Sequence[Rule],
    tensors: Mapping[str, TensorInfo],
    shapes: Mapping[str, tuple[int, ...]],
    inputs: Mapping[str, int],
) -> Match:
    """Try one layout.

    Args:
        shapes: parameter path -> shape.
        inputs: kernel path -> number of input axes, where known.
    """
    pieces: dict[str, list[Piece]] = {path: [] for path in shapes}
    wanted: set[str] = set()
    missing: dict[str, None] = {}
    misshapen: list[str] = []
    for rule in rules:
        if rule.use != "fill":
            continue
        for name, lead, shape in instances(rule, shapes[rule.param]):
            wanted.add(name)
            info = tensors.get(name)
            if info is None:
                missing[name] = None
                continue
            piece = Piece(rule, shape, input_axes(rule, shape, inputs), lead, info)
            if info.shape == piece.file_shape:
                pieces[rule.param].append(piece)
            else:
                has, expected = list(info.shape), list(piece.file_shape)
                misshapen.append(f"{name} has {has}, expected {expected}")
    copies = {
        rule.key: rule.param
        for rule in rules
        if rule.use == "copy" and rule.key in tensors and rule.key not in wanted
    }
    patterns = [
        re.compile(re.sub(r"\\\{[le]\\\}", r"\\d+", re.escape(rule.key)))
        for rule in rules
        if rule.use == "skip"
    ]
    rest = [name for name in tensors if name not in wanted and name not in copies]
    skipped = [name for name in rest if any(p.fullmatch(name) for p in patterns)]
    return Match(
        layout=layout,
        pieces={path: tuple(found) for path, found in pieces.items()},
        copies=copies,
        skipped=tuple(skipped),
        missing=tuple(missing),
        extra=tuple(sorted(set(rest) - set(skipped))),
        misshapen=tuple(dict.fromkeys(misshapen)),
    )


def input_axes(rule: Rule, shape: tuple[int, ...], inputs: Mapping[str, int]) -> int:
    """Leading axes of a parameter (of one layer) that are inputs; 0 for vectors."""
    return inputs.get(rule.param, len(shape) - 1) if rule.layout == "linear" else 0


def offenders(folder: Path, family: str, best: Match, matches: Sequence[Match]) -> str:
    """One message that names all that does not fit the closest layout."""
    known = ", ".join(match.layout for match in matches)
    lines = [f"{folder} does not fit port {family}: closest of its layouts ({known}) is "]
    lines[0] += f"{best.layout!r}, but"
    for title, names in (
        ("missing tensors", best.missing),
        ("unknown tensors", best.extra),
        ("tensors of the wrong shape", best.misshapen),
    ):
        if names:
            lines.append(f"  {len(names)} {title}: {'; '.join(_shorten(names))}")
    lines.append(
        "Nothing was converted. Check that config.json and the weights are of the same checkpoint "
        "and that all files are there"
        + (
            "; if the output head is tied, config.json must say tie_word_embeddings: true"
            if any("head" in name for name in best.missing)
            else ""
        )
    )
    return "\n".join(lines)


def _shorten(names: Iterable[str]) -> list[str]:
    """Names, with layer numbers folded into ranges when there are many."""
    names = list(names)
    if len(names) <= _SHOWN:
        return names
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[re.sub(r"\d+", "#", name)].append(name)
    out = []
    for members in groups.values():
        if len(members) == 1:
            out.append(members[0])
        else:
            out.append(f"{members[0]} ... {members[-1]} ({len(members)})")
    return out
