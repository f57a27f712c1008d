"""What the commands print: plain tables, or one JSON document."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vrh_jax.study.layout import Layout
from vrh_jax.study.run import Outcome
from vrh_jax.study.summary import compare_models


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Left-aligned columns."""
    cells = [list(header), *[["" if v is None else str(v) for v in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["  ".join(v.ljust(w) for v, w in zip(row, widths, strict=True)) for row in cells]
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(line.rstrip() for line in lines)


def show_plan(plan: dict[str, Any], *, as_json: bool) -> None:
    """``vrh plan``."""
    if as_json:
        print(json.dumps(plan))
        return
    detection = plan["detection"]
    print(f"study {plan['study']} (settings {plan['settings']}) -> {plan['out']}\n")
    names = ("name", "source", "family", "layers", "heads")
    print(table(names, [[m[n] for n in names] for m in plan["models"]]))
    print(
        f"\ndetection: {detection['samples']} samples on {detection['images']} images of "
        f"{detection['benchmark']}, ranked by {detection['score']}\n"
    )
    columns = ("model", "benchmark", "samples", "kinds", "head_sets", "answers")
    rows = [
        [", ".join(f"{n} {k}" for k, n in e[c].items()) if c == "kinds" else e[c] for c in columns]
        for e in plan["evaluation"]
    ]
    print(table(columns, rows))
    print("\nprompts")
    for name, prompt in plan["prompts"].items():
        order = "image first" if prompt["image_first"] else "text first"
        said = prompt["template"].replace("{text}", prompt["expression"])
        print(f"  {name} ({order}, {prompt['max_new']} tokens): {said!r}")
    for first, second, backbone in plan["transfer"]:
        print(f"\ntransfer: {first} <-> {second} ({backbone} backbone)")
    print(f"\n{plan['answers']} answers in all")


def show_outcome(outcome: Outcome, command: str, *, as_json: bool) -> None:
    """``vrh study``, ``score``, ``evaluate`` and ``transfer``."""
    layout = Layout(outcome.out)
    if command == "transfer":
        show_transfer(compare_models(layout), as_json=as_json)
    elif command == "score":
        show_rankings(layout, as_json=as_json)
    elif as_json:
        worked = {"out": str(outcome.out), "worked": outcome.worked, "summary": outcome.summary}
        print(json.dumps(worked))
    elif not outcome.worked:
        print(f"{outcome.out}: everything is there already; nothing to do")
    elif outcome.summary is not None:
        show_summary(outcome.summary, outcome.out, as_json=False)
    else:
        print(f"result rows are in {layout.out / 'rows'}; `vrh study` adds numbers and report")


def show_transfer(entries: list[dict[str, Any]], *, as_json: bool) -> None:
    """Agreement of the study's pairs of models."""
    if as_json:
        print(json.dumps({"transfer": entries}))
        return
    names = ("source", "target", "backbone", "top_k", "overlap", "expected_layer", "spearman")
    print(table(names, [[_short(e[n]) for n in names] for e in entries]))


def show_rankings(layout: Layout, *, as_json: bool) -> None:
    """Best heads of every model."""
    files = sorted((layout.out / "detection").rglob("*.heads.json"))
    found = [json.loads(f.read_text()) for f in files]
    if as_json:
        print(json.dumps({"out": str(layout.out), "rankings": found}))
        return
    rows = [
        [r["model"], r["counted"], r["correct"], " ".join(
            f"({layer},{head}) {score:.2f}" for layer, head, score in r["ranking"][:5]
        )]
        for r in found
    ]  # fmt: skip
    print(table(("model", "samples", "correct", "first heads (layer, head) and score"), rows))


def show_summary(summary: dict[str, Any], out: Path, *, as_json: bool) -> None:
    """Accuracies of a study: random draws as mean and range."""
    if as_json:
        print(json.dumps({"out": str(out), "worked": True, "summary": summary}))
        return
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for entry in summary["accuracy"]:
        key = tuple(entry[n] for n in ("model", "benchmark", "heads", "k"))
        groups.setdefault(key, []).append(entry)
    rows = []
    for (model, benchmark, heads, k), entries in groups.items():
        shares = [e["accuracy"] for e in entries]
        if len(entries) == 1:
            spread = f"{entries[0]['ci_low']:.3f} - {entries[0]['ci_high']:.3f} (95 %)"
        else:
            spread = f"{min(shares):.3f} - {max(shares):.3f} ({len(shares)} draws)"
        mean = f"{sum(shares) / len(shares):.3f}"
        rows.append([model, benchmark, heads, k, entries[0]["n"], mean, spread])
    print(table(("model", "benchmark", "heads masked", "k", "n", "accuracy", "range"), rows))
    print(f"\nnumbers: {out / 'summary.json'}\nreport:  {out / 'report.html'}")


def show_models(*, as_json: bool, as_markdown: bool) -> None:
    """Ported models."""
    from model_ports import catalogue

    rows = catalogue.models()
    if as_json:
        print(json.dumps(rows))
    elif as_markdown:
        print(catalogue.markdown(rows), end="")
    else:
        print(table(catalogue.HEADER, catalogue.cells(rows)))


def _short(value: Any) -> Any:
    return f"{value:.3f}" if isinstance(value, float) else value
