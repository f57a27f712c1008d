"""What a study found, as plain sentences with numbers, also where nothing was found."""

from collections.abc import Mapping, Sequence
from typing import Any

from vrh_jax.report.style import set_label

Entry = Mapping[str, Any]
READABLE = 0.95  # below this share of readable answers, a loss is partly one of format
CONTROL_NAMES = {"random": "random heads", "random_layer": "random heads of the same layers"}


def percent(value: float | None, digits: int = 0) -> str:
    """``0.123`` -> ``12 %``."""
    return "-" if value is None else f"{100 * value:.{digits}f} %"


def span(low: float, high: float) -> str:
    """An interval in per cent."""
    return f"{100 * low:.0f} to {100 * high:.0f} %"


def points(value: float, low: float, high: float) -> str:
    """A difference in percentage points with its interval."""
    return f"{100 * value:.1f} points (95 % interval {100 * low:.1f} to {100 * high:.1f})"


def p_value(p: float) -> str:
    """``p = 0.03``, or ``p < 0.001``."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def masking(effect: Entry, heads: int, noun: str) -> list[str]:
    """Sentences on the model's own highest-scoring heads.

    Args:
        effect: an entry of ``effects``.
        heads: number of heads of the model.
        noun: what is right or wrong, e.g. "boxes".
    """
    clusters = "images" if noun == "boxes" else "groups"
    changes = effect["mcnemar"]
    text = (
        f"Masking the {effect['k']} highest-scoring heads ({percent(effect['k'] / heads, 1)} of "
        f"{heads}) takes the share of right {noun} from {percent(effect['baseline'])} to "
        f"{percent(effect['accuracy'])}: {_drop(effect)}, over {effect['n']} "
        f"samples in {effect['groups']} {clusters}. {changes['lost']} right answers are lost, "
        f"{changes['gained']} gained (exact McNemar test, {p_value(changes['p'])})."
    )
    out = [text]
    out += [_control(kind, control) for kind, control in effect["controls"].items()]
    if not effect["controls"]:
        out.append(
            "No random heads were masked for comparison: this does not tell which heads matter."
        )
    return out


def _drop(effect: Entry) -> str:
    size = points(effect["drop"], effect["drop_low"], effect["drop_high"])
    if effect["drop_low"] > 0:
        return f"a drop of {size}"
    if effect["drop_high"] < 0:
        return f"a change for the better, a drop of {size}"
    return f"a drop of {size}, not distinguishable from none"


def _control(kind: str, control: Entry) -> str:
    draws = control["draws"]
    name = CONTROL_NAMES[kind]
    if draws == 1:
        left = f"One draw of {name} leaves {percent(control['mean'])} (one draw, no interval)"
    else:
        left = (
            f"{draws} draws of {name} leave {percent(control['mean'])} on average "
            f"({percent(control['min'])} to {percent(control['max'])})"
        )
    size = points(abs(control["effect"]), *_ordered(control))
    if control["effect_low"] > 0:
        compared = f"the highest-scoring heads cost {size} more"
    elif control["effect_high"] < 0:
        compared = f"the highest-scoring heads cost {size} less"
    else:
        compared = (
            "the difference, "
            f"{points(control['effect'], control['effect_low'], control['effect_high'])}, "
            "is not distinguishable from zero"
        )
    least = control["p"] <= 1 / (draws + 1) + 1e-9
    ranked = f", the least that {draws} {'draw' if draws == 1 else 'draws'} can give" * least
    return f"{left}: {compared} (rank among the draws: {p_value(control['p'])}{ranked})."


def transferred(effect: Entry, own: Entry | None) -> str:
    """One sentence on another model's heads, next to the own ones and random ones.

    Args:
        own: the entry of the model's own heads at the same k.
    """
    beside = [f"{percent(own['accuracy'])} with its own"] if own else []
    beside += [
        f"{percent(c['mean'])} with {CONTROL_NAMES[kind]}" for kind, c in effect["controls"].items()
    ]
    against = f"; {', '.join(beside)}" if beside else ""
    return (
        f"With the {effect['k']} {set_label(effect['heads'])} masked instead: "
        f"{percent(effect['accuracy'])}, {_drop(effect)}{against}."
    )


def _ordered(control: Entry) -> tuple[float, float]:
    ends = (control["effect_low"], control["effect_high"])
    return ends if control["effect"] >= 0 else (-ends[1], -ends[0])


def answer_format(before: Entry, after: Entry) -> str:
    """Whether a loss is one of content or one of format."""
    share = percent(after["readable"])
    if after["readable"] >= READABLE:
        lost = after["accuracy"] < before["accuracy"] - 0.05
        so = ", so what is lost is the content, not the format" if lost else ""
        return (
            f"The answers keep their form: {percent(before['readable'])} are readable before and "
            f"{share} after{so}."
        )
    return (
        f"Only {share} of the answers are still readable ({percent(before['readable'])} before), "
        "so part of the loss is a loss of format, and the drop overstates a loss of the content."
    )


def shortfall(control: Entry, k: int) -> str:
    """That a layer has too few other heads for a matched control.

    Args:
        control: an entry of ``controls``.
    """
    return (
        f"Random heads of the same layers are only {k - control['shortfall']} instead of {k}: "
        "some layers have too few heads outside the chosen set, so this control is milder than "
        "the set that it is compared with."
    )


def verdict(effects: Sequence[Entry], benchmark: str) -> str:
    """One sentence on a benchmark: do the highest-scoring heads cost more than random ones?

    Args:
        effects: entries with the models' own heads at one k on this benchmark.
    """
    tested = [e for e in effects if e["controls"]]
    if not tested:
        return f"On {benchmark} no controls were run."
    held = [e for e in tested if all(c["effect_low"] > 0 for c in e["controls"].values())]
    if not held:
        return (
            f"On {benchmark}, masking the {tested[0]['k']} highest-scoring heads costs no more "
            "accuracy than masking as many random heads, beyond sampling error, in any model: the "
            "effect is absent or too small for this study to see."
        )
    models = "every model" if len(held) == len(tested) else ", ".join(e["model"] for e in held)
    only = "" if len(held) == len(tested) else f" only (of {len(tested)} models)"
    left = _range([e["accuracy"] for e in held])
    controls = _range([c["mean"] for e in held for c in e["controls"].values()])
    before = _range([e["baseline"] for e in held])
    return (
        f"On {benchmark}, masking the {held[0]['k']} highest-scoring heads takes accuracy from "
        f"{before} to {left}, while as many random heads leave {controls} on average; the "
        f"difference exceeds sampling error in {models}{only}."
    )


def _range(values: Sequence[float]) -> str:
    low, high = f"{100 * min(values):.0f}", f"{100 * max(values):.0f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def sharing(entry: Entry) -> str:
    """The short form of ``transfer``."""
    beyond = "more than" if entry["p_layer"] < 0.05 else "no more than"
    return (
        f"{entry['source']} and {entry['target']} ({entry['backbone']} backbone) have "
        f"{entry['overlap']} of {entry['top_k']} highest-scoring heads in common, {beyond} their "
        f"layers alone give ({entry['expected_layer']:.1f})."
    )


def transfer(entry: Entry) -> str:
    """Whether two models share heads beyond what their layers give."""
    names = f"{entry['source']} and {entry['target']} ({entry['backbone']} backbone)"
    beyond = "more than" if entry["p_layer"] < 0.05 else "not distinguishable from"
    text = (
        f"{names} have {entry['overlap']} of their {entry['top_k']} highest-scoring heads in "
        f"common; heads placed at random in the same layers would share "
        f"{entry['expected_layer']:.1f} ({p_value(entry['p_layer'])}), heads placed anywhere "
        f"{entry['expected_uniform']:.1f}, so this is {beyond} what the layers alone give. "
        f"Rank correlation of all scores: {entry['spearman']:.2f} "
        f"(95 % interval over samples {entry['spearman_low']:.2f} to "
        f"{entry['spearman_high']:.2f}); shuffling heads within layers keeps "
        f"{entry['null']:.2f} ({entry['null_low']:.2f} to {entry['null_high']:.2f}), and inside "
        f"single layers it is {entry['within_layer']:.2f} on average."
    )
    if entry["ceiling"] < 0.95:
        text += f" Noise alone would hold the correlation below {entry['ceiling']:.2f}."
    return text


def stability(heads: Entry, k: int) -> str:
    """How far the choice of heads depends on the samples."""
    found = next((s for s in heads["stability"]["top_k"] if s["k"] == k), None)
    if found is None:
        return ""
    tied = len(found["tied"])
    text = (
        f"Two disjoint halves of the {heads['counted']} detection samples agree on "
        f"{found['half_overlap']:.0f} of {k} heads (median; 90 % of splits "
        f"{found['half_overlap_low']:.0f} to {found['half_overlap_high']:.0f}), and their scores "
        f"correlate at {heads['stability']['split_half']:.2f}."
    )
    if tied:
        some = "1 head that follows" if tied == 1 else f"{tied} heads that follow"
        text += f" Rank {k} cannot be told from {some}, so the set is not sharply bounded."
    return text


def concentration(heads: Entry) -> str:
    """How few heads hold the score."""
    half = heads["sparsity"]["rho_0.5"]
    return (
        f"{percent(half['value'], 1)} of the heads hold half of the total score "
        f"(95 % interval {100 * half['value_low']:.1f} to {100 * half['value_high']:.1f} %)."
    )
