"""Where a study keeps its files.

::

    OUT/study.json                              settings, their hash, fingerprints of the models
    OUT/detection/MODEL/BENCHMARK.nc            head scores (sample, layer, head)
    OUT/detection/MODEL/BENCHMARK.parquet       the answers that were scored
    OUT/detection/MODEL/BENCHMARK.heads.json    ranking, masks and controls
    OUT/rows/MODEL/BENCHMARK/MASK.parquet       one row per evaluated sample
    OUT/parts/                                  finished pieces of an unfinished stage
    OUT/summary.json, OUT/report.html           written last; both there: finished
"""

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Layout:
    """Paths below a study's folder."""

    out: Path

    @property
    def study(self) -> Path:
        """Settings and state."""
        return self.out / "study.json"

    @property
    def summary(self) -> Path:
        """The study's numbers."""
        return self.out / "summary.json"

    @property
    def report(self) -> Path:
        """The study's report; written after the summary."""
        return self.out / "report.html"

    @property
    def finished(self) -> bool:
        """Nothing is left to do."""
        return self.summary.exists() and self.report.exists()

    def scores(self, model: str, benchmark: str) -> Path:
        """Head scores per sample (netCDF)."""
        return self.out / "detection" / model / f"{benchmark}.nc"

    def detection_rows(self, model: str, benchmark: str) -> Path:
        """Answers on the detection samples."""
        return self.out / "detection" / model / f"{benchmark}.parquet"

    def heads(self, model: str, benchmark: str) -> Path:
        """Ranking and head sets."""
        return self.out / "detection" / model / f"{benchmark}.heads.json"

    def rows(self, model: str, benchmark: str, mask: str) -> Path:
        """Result rows of one mask."""
        return self.out / "rows" / model / benchmark / f"{mask}.parquet"

    def parts(self, stage: str, model: str, benchmark: str) -> Path:
        """Finished pieces of a stage."""
        return self.out / "parts" / stage / model / benchmark
