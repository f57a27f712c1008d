"""Which samples the gallery shows: a fixed rule, so that nothing is picked by hand."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model_ports.errors import UserError
from vrh_jax.analysis.results import Cell, Key
from vrh_jax.data.sample import Sample
from vrh_jax.report.gallery import Example, Recorder, Shown, save_examples, save_image

# (right before, right after) -> how many are shown per model: boxes and needles, questions.
REGIONS = {(True, False): 3, (True, True): 2, (False, False): 1}
QUESTIONS = {(True, False): 1, (True, True): 1}
EXCERPT = 300


def pick(before: Cell, after: Cell) -> list[str]:
    """Sample ids: the first of each kind of outcome in the order of ids."""
    looked_up = np.isin(before.task, ("grounding", "needle")).any()
    wanted = REGIONS if looked_up else QUESTIONS
    out: list[str] = []
    for outcome, count in wanted.items():
        fits = (before.correct == outcome[0]) & (after.correct == outcome[1])
        out += [str(i) for i in before.sample_id[fits][:count]]
    return out


def make_examples(
    order: Sequence[tuple[str, str]],
    cells: Mapping[Key, Cell],
    rows: Mapping[Key, Mapping[str, Mapping[str, Any]]],
    samples: Mapping[str, Sequence[Sample]],
    k: int,
    folder: Path,
    attention: Recorder | None = None,
) -> list[Example]:
    """Examples of every model and benchmark, their images and the index written to ``folder``.

    Args:
        order: (model, benchmark) as they are shown.
        cells, rows: of the masks ``none`` and ``vrh``; rows by sample id.
        samples: benchmark -> its evaluation samples.
        k: number of masked heads.
        attention: gives the attention map of a shown sample.
    """
    out: list[Example] = []
    for model, benchmark in order:
        key, after_key = (model, benchmark, "none", 0, 0), (model, benchmark, "vrh", k, 0)
        if key not in cells or after_key not in cells or benchmark not in samples:
            continue
        by_id = {s.id: s for s in samples[benchmark]}
        for sample_id in pick(cells[key], cells[after_key]):
            if (sample := by_id.get(sample_id)) is None:
                continue
            out.append(
                Example(
                    model=model,
                    benchmark=benchmark,
                    sample_id=sample_id,
                    question=excerpt(sample),
                    expected=sample.answer,
                    image=_keep_image(sample, folder, f"{benchmark}-{len(out):03d}"),
                    image_size=sample.image_size,
                    box=sample.box,
                    k=k,
                    before=_shown(rows[key][sample_id]),
                    after=_shown(rows[after_key][sample_id]),
                    attention=attention(model, sample, k) if attention else None,
                )
            )
    save_examples(folder, out)
    return out


def excerpt(sample: Sample) -> str:
    """The question, or what surrounds the needle in a long text."""
    text = " ".join(sample.text.split())
    if len(text) <= EXCERPT:
        return text
    middle = max(text.find(sample.needle), 0) + len(sample.needle) // 2
    start = max(0, min(middle - EXCERPT // 2, len(text) - EXCERPT))
    return f"… {text[start : start + EXCERPT]} …"


def _keep_image(sample: Sample, folder: Path, name: str) -> str:
    if sample.image is None:
        return ""
    try:
        return save_image(sample.image(), folder, name)
    except (OSError, UserError):
        return ""  # an unreadable image is a result of the study, not a failure of the report


def _shown(row: Mapping[str, Any]) -> Shown:
    corners = [row[c] for c in ("x0", "y0", "x1", "y1")]
    stated = all(v is not None and not math.isnan(v) for v in corners)
    box = (corners[0], corners[1], corners[2], corners[3]) if stated else None
    return Shown(str(row["text"]), box, bool(row["correct"]), str(row["failure"]))
