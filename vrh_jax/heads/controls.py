"""Random head sets to compare a chosen set with: seeded, outside the set, pools recorded."""

import dataclasses
import zlib
from collections import Counter
from collections.abc import Callable

import numpy as np

from model_ports.errors import UserError
from vrh_jax.heads.masks import Head, HeadSet

# Heads to choose from by name of the pool, and how many are needed from each.
Pools = tuple[dict[str, list[Head]], Counter[str]]


@dataclasses.dataclass(frozen=True)
class Control:
    """One kind of control for one chosen set.

    Attributes:
        kind: ``random`` or ``random_layer``.
        sets: one head set per draw.
        pool: heads to choose from; per layer for ``random_layer``.
        shortfall: heads that could not be matched because a layer has too few others.
    """

    kind: str
    sets: tuple[HeadSet, ...]
    pool: dict[str, int]
    shortfall: int


def _choose(rng: np.random.Generator, pool: list[Head], count: int) -> list[Head]:
    return [pool[int(i)] for i in rng.choice(len(pool), size=count, replace=False)]


def _uniform(chosen: HeadSet, layers: int, n_heads: int) -> Pools:
    pool = [(x, h) for x in range(layers) for h in range(n_heads) if (x, h) not in chosen]
    return {"all": pool}, Counter({"all": len(chosen)})


def _per_layer(chosen: HeadSet, layers: int, n_heads: int) -> Pools:
    need = Counter(str(layer) for layer, _ in chosen)
    pools = {
        str(x): [(x, h) for h in range(n_heads) if (x, h) not in chosen]
        for x in range(layers)
        if str(x) in need
    }
    return pools, need


_POOLS: dict[str, Callable[[HeadSet, int, int], Pools]] = {
    "random": _uniform,
    "random_layer": _per_layer,
}


def draw_controls(
    kind: str, chosen: HeadSet, layers: int, n_heads: int, *, draws: int, seed: int, key: str
) -> Control:
    """Draw control sets for a chosen set.

    Args:
        kind: ``random`` draws uniformly from all heads outside the set; ``random_layer``
            draws, in every layer, as many heads outside the set as the set has there.
        draws: number of sets.
        seed, key: the draws depend on both (key: the model's name), on the kind and on the
            number of heads, and on nothing else.

    Raises:
        UserError: for ``random``, fewer heads are outside the set than inside.
        For ``random_layer`` a layer that is too full gives what it has, and the shortfall is
        recorded.
    """
    pools, need = _POOLS[kind](chosen, layers, n_heads)
    missing = {name: n - len(pools[name]) for name, n in need.items() if n > len(pools[name])}
    if missing and kind == "random":
        raise UserError(
            f"a random control for {len(chosen)} heads needs as many others, but the model has "
            f"{layers * n_heads} heads in all; use k of at most {layers * n_heads // 2}"
        )
    sets = []
    for draw in range(draws):
        rng = np.random.default_rng([seed, zlib.crc32(f"{key}/{kind}".encode()), len(chosen), draw])
        heads: list[Head] = []
        for name in sorted(need):
            heads += _choose(rng, pools[name], min(need[name], len(pools[name])))
        sets.append(frozenset(heads))
    return Control(
        kind=kind,
        sets=tuple(sets),
        pool={name: len(pool) for name, pool in sorted(pools.items())},
        shortfall=sum(missing.values()),
    )
