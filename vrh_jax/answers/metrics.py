"""When an answer to a question is right: the rule of every benchmark.

Every rule reads a printed text into a ``Reading``. No text, "nan" and a text of which nothing can
be read are wrong and stay in the denominator. Official scorers that ask a language model are
replaced by these deterministic readers; docs/benchmarks.md says what was kept and what was not.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from vrh_jax.answers.mathvista import mathvista
from vrh_jax.answers.mmstar import mmstar
from vrh_jax.answers.reading import NOTHING, Reading, by_kind
from vrh_jax.answers.spatial import spatial457, spatial_size

if TYPE_CHECKING:
    from vrh_jax.data.sample import Sample

RULES: dict[str, Callable[["Sample", str], Reading]] = {
    "": by_kind,
    "countbench": by_kind,
    "cv_bench": by_kind,
    "mathvista": mathvista,
    "mmstar": mmstar,
    "spatial457": spatial457,
    "spatialrgpt": spatial_size,
    "vaw": by_kind,
}


def read_answer(sample: "Sample", text: object) -> Reading:
    """Read and judge the answer to a question by its benchmark's rule; throws on no text.

    Raises:
        ValueError: the sample's rule is unknown.
    """
    if sample.rule not in RULES:
        raise ValueError(f"sample {sample.id!r}: no rule {sample.rule!r} (known: {sorted(RULES)})")
    if not isinstance(text, str) or text.strip().lower() in ("", "nan"):
        return NOTHING
    return RULES[sample.rule](sample, text)
