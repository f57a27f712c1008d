"""Every head set that a study masks on a model, by name."""

import dataclasses
from collections.abc import Mapping, Sequence

from vrh_jax.config import EvaluationSettings, StudyConfig
from vrh_jax.heads.controls import Control, draw_controls
from vrh_jax.heads.masks import Head, HeadSet
from vrh_jax.heads.ranking import top


@dataclasses.dataclass(frozen=True)
class MaskSpec:
    """One head set.

    Attributes:
        heads: none, vrh, random, random_layer or transfer:MODEL.
        k: number of heads asked for (0 for none).
        draw: index of a random draw, else 0.
        removed: the heads.
    """

    heads: str
    k: int
    draw: int
    removed: HeadSet

    @property
    def name(self) -> str:
        """File name of its rows."""
        if self.heads == "none":
            return "none"
        label = f"{self.heads.replace(':', '-')}-k{self.k:04d}"
        return f"{label}-d{self.draw:03d}" if self.heads.startswith("random") else label


BASELINE = MaskSpec("none", 0, 0, frozenset())


def controls_for(
    config: StudyConfig, model: str, ranking: Sequence[Head], shape: tuple[int, int]
) -> dict[int, list[Control]]:
    """k -> controls of the chosen heads, with as many draws as any benchmark asks for."""
    layers, n_heads = shape
    draws = {
        k: max((config.draws(e, k) for e in config.evaluation if k in config.sizes(e)), default=0)
        for k in config.all_sizes
    }
    return {
        k: [
            draw_controls(
                kind, top(list(ranking), k), layers, n_heads,
                draws=draws[k], seed=config.controls.seed, key=model,
            )
            for kind in config.controls.kinds
        ]
        for k in config.all_sizes
    }  # fmt: skip


def masks_for(
    config: StudyConfig,
    entry: EvaluationSettings,
    model: str,
    rankings: Mapping[str, Sequence[Head]],
    controls: Mapping[int, Sequence[Control]],
) -> list[MaskSpec]:
    """All masks of a model on a benchmark: none, chosen, random draws, other models' heads."""
    others = [
        other
        for pair in config.transfer.pairs
        for other, target in (pair.models, pair.models[::-1])
        if target == model and entry.benchmark in config.transfer_benchmarks
    ]
    out = [BASELINE]
    for k in config.sizes(entry):
        out.append(MaskSpec("vrh", k, 0, top(list(rankings[model]), k)))
        out += [MaskSpec(f"transfer:{o}", k, 0, top(list(rankings[o]), k)) for o in others]
        for control in controls[k]:
            chosen = enumerate(control.sets[: config.draws(entry, k)])
            out += [MaskSpec(control.kind, k, draw, heads) for draw, heads in chosen]
    return out
