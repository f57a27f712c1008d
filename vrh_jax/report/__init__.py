"""Figures and the report of a study."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def write_report(out_dir: "Path", *args: Any, **kwargs: Any) -> "Path":
    """See ``vrh_jax.report.write.write_report``; matplotlib is imported only here."""
    from vrh_jax.report.write import write_report as write

    return write(out_dir, *args, **kwargs)
