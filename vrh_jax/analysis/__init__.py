"""Statistics of head studies: pure functions over arrays and result rows."""

from vrh_jax.analysis.summary import summarise

__all__ = ["summarise"]
