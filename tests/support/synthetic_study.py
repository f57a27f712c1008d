"""A finished study's files with made-up answers whose statistics are known."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xarray as xr
from PIL import Image

from vrh_jax.analysis import summarise
from vrh_jax.data.sample import Sample
from vrh_jax.study.layout import Layout
from vrh_jax.study.masks import MaskSpec
from vrh_jax.study.rows import read_rows, write_rows

LAYERS, HEADS, SIZE = 8, 8, 96
KS = (2, 4, 8)
PLACES = ("leftmost", "small red", "topmost", "large blue")


def scene(seed):
    """An image of coloured squares, and its samples' target box."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(170, 230, (SIZE, SIZE, 3)).astype(np.uint8)
    for _ in range(4):
        x, y = rng.integers(4, SIZE - 30, 2)
        pixels[y : y + 24, x : x + 24] = rng.integers(0, 255, 3)
    return Image.fromarray(pixels), (float(x), float(y), float(x + 24), float(y + 24))


def grounding(n):
    out = []
    for i in range(n):
        image = i // 2
        _, box = scene(image)
        out.append(
            Sample(
                f"s{i:04d}",
                "grounding",
                f"the {PLACES[i % 4]} square",
                lambda s=image: scene(s)[0],
                (SIZE, SIZE),
                box,
                "",
                f"im{image}",
                f"im{image}",
            )
        )
    return out


def questions(n):
    kinds = (("text", "red"), ("count", "3"), ("choice", "B"))
    out = []
    for i in range(n):
        kind, answer = kinds[i % 3]
        out.append(
            Sample(
                f"q{i:04d}",
                kind,
                "What colour is the square?",
                lambda s=i: scene(s)[0],
                (SIZE, SIZE),
                None,
                answer,
                f"qi{i}",
                f"qi{i}",
            )
        )
    return out


def needles(n):
    filler = "The grass is green. The sky is blue. " * 20
    return [
        Sample(
            f"n{i:04d}",
            "needle",
            f"{filler}The code is {4000 + i}. {filler}What is the code?",
            None,
            (0, 0),
            None,
            str(4000 + i),
            f"n{i}",
            f"n{i}",
            needle=str(4000 + i),
        )
        for i in range(n)
    ]


def _row(model, benchmark, mask, sample, right, readable):
    box, failure, text = [None] * 4, "", sample.answer
    overlap = None
    if sample.kind == "grounding":
        shift = 1.0 if right else 34.0
        overlap = 0.85 if right else 0.0
        box = [min(max(v + shift, 0), SIZE) for v in sample.box]
        text = f'{{"bbox_2d": {[round(v) for v in box]}}}'
        failure = "" if right else "mislocated"
    elif not right:
        text, failure = "something else", "wrong_answer"
    if not readable:
        right, box, overlap = False, [None] * 4, 0.0 if sample.kind == "grounding" else None
        text, failure = "the the the", "parse_failure"
    return {
        "model": model, "benchmark": benchmark, "task": sample.kind, "mask": mask.name,
        "heads": mask.heads, "k": mask.k, "draw": mask.draw, "sample_id": sample.id,
        "image_id": sample.image_id, "group": sample.group, "text": text,
        "expected": sample.answer, **dict(zip(("x0", "y0", "x1", "y1"), box, strict=True)),
        "iou": overlap, "correct": bool(right), "failure": failure, "error": "",
        "n_tokens": 12, "settings": "synthetic",
    }  # fmt: skip


def _masks(models, model, draws):
    out = [MaskSpec("none", 0, 0, frozenset())]
    for k in KS:
        out.append(MaskSpec("vrh", k, 0, frozenset()))
        out += [MaskSpec(f"transfer:{m}", k, 0, frozenset()) for m in models if m != model]
        for kind in ("random", "random_layer"):
            out += [MaskSpec(kind, k, d, frozenset()) for d in range(draws)]
    return out


def _accuracy(mask, effect, rng):
    harm = {"none": 0.0, "vrh": 1.0, "random": 0.08, "random_layer": 0.15}.get(
        mask.heads, 0.9 if mask.heads.endswith("one") or mask.heads.endswith("two") else 0.3
    )
    lost = effect * harm * {0: 0, 2: 0.35, 4: 0.75, 8: 0.95}[mask.k]
    if mask.heads.startswith("random"):
        lost += abs(rng.normal(0, 0.03))
    return 0.88 * max(1 - lost, 0.02)


def score_map(seed, base=None):
    """Mean scores [L, N]: a few strong heads in the middle layers."""
    rng = np.random.default_rng(seed)
    out = 0.01 * rng.gamma(0.7, size=(LAYERS, HEADS))
    if base is None:
        out[3:6] += rng.choice([0, 0, 0.1, 0.3], (3, HEADS)) * rng.random((3, HEADS))
    else:
        out += base * rng.uniform(0.6, 1.3, base.shape)
    return out


def write_study(
    out: Path, *, models=("one", "two", "other"), effect=1.0, draws=5, n=120, text=False,
    readable=1.0, seed=0,
):  # fmt: skip
    """Write rows, scores and summary of a study; returns (summary, samples per benchmark)."""
    layout, rng = Layout(out), np.random.default_rng(seed)
    samples = (
        {"needle": needles(n)} if text else {"scenes": grounding(n), "questions": questions(n)}
    )
    detected = next(iter(samples))
    for model in models:
        for benchmark, items in samples.items():
            ease = rng.random(len(items))
            for mask in _masks(models, model, draws):
                strength = effect * (1 if benchmark == detected else 0.5)
                limit = _accuracy(mask, strength, rng)
                right = ease + 0.03 * rng.normal(size=len(items)) < limit
                fine = (
                    rng.random(len(items)) < readable
                    if mask.heads == "vrh"
                    else np.ones(len(items), bool)
                )
                rows = [
                    _row(model, benchmark, mask, s, r, f)
                    for s, r, f in zip(items, right, fine, strict=True)
                ]
                write_rows(layout.rows(model, benchmark, mask.name), rows)
    shared = score_map(seed)
    for i, model in enumerate(models):
        means = score_map(seed + 10 + i, shared if model in ("one", "two") else None)
        values = rng.gamma(2.0, means / 2, size=(80, LAYERS, HEADS)).astype(np.float32)
        data = xr.Dataset(
            {
                "region_sum": (("sample", "layer", "head"), values),
                "counted": ("sample", np.arange(80) > 3),
                "correct": ("sample", np.ones(80, bool)),
            },
            coords={"sample": np.array([f"d{j}" for j in range(80)], object)},
        )
        path = layout.scores(model, detected)
        path.parent.mkdir(parents=True, exist_ok=True)
        data.to_netcdf(path, engine="h5netcdf")
    settings = {
        "hash": "synthetic",
        "ks": list(KS),
        "scoring": {"method": "region_sum"},
        "detection": {"benchmark": detected, "samples": 80},
        "transfer": {
            "permutations": 200,
            "pairs": [
                {"models": [a, b], "backbone": "shared" if (a, b) == ("one", "two") else "separate"}
                for i, a in enumerate(models)
                for b in models[i + 1 :]
            ],
        },
    }
    summary = {
        "study": "synthetic",
        **summarise(read_table(layout), read_scores(layout, models, detected), settings,
                    resamples=400),
        "versions": {"python": "3", "jax": "0"},
        "settings": settings,
        "wall_s": 12.3,
    }  # fmt: skip
    layout.summary.write_text(json.dumps(summary))
    return summary, samples


def read_table(layout):
    """All rows of a study, one table."""
    files = sorted((layout.out / "rows").rglob("*.parquet"))
    return pa.concat_tables([pq.read_table(f) for f in files])


def read_scores(layout, models, benchmark):
    """Model -> its scores."""
    return {
        m: xr.open_dataset(layout.scores(m, benchmark), engine="h5netcdf").load() for m in models
    }


def plain_rows(layout, model, benchmark, mask):
    """The rows of one file as dicts."""
    return read_rows(layout.rows(model, benchmark, mask))
