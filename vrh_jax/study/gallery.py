"""Attention maps for the samples that the report shows."""

import jax

from vrh_jax.data.sample import Sample
from vrh_jax.engine.attention_map import attention_map
from vrh_jax.heads.ranking import top
from vrh_jax.report.gallery import Attention, Recorder
from vrh_jax.study.detection import ranking_of, read_heads
from vrh_jax.study.layout import Layout
from vrh_jax.study.models import Models
from vrh_jax.study.plan import Plan


def recorder(plan: Plan, models: Models, layout: Layout) -> Recorder | None:
    """A function that runs a model on one shown sample and returns where its k chosen heads look.

    None with several processes: only the first one writes the report, and a model that is
    spread over all of them cannot be run by one.
    """
    if jax.process_count() > 1:
        return None
    config = plan.config

    def record(model: str, sample: Sample, k: int) -> Attention | None:
        if sample.image is None or sample.kind != "grounding":
            return None
        (task,) = plan.tasks(model, plan.benchmark_of(sample), [sample])
        heads = top(ranking_of(read_heads(layout, model, config.detection.benchmark)), k)
        found = attention_map(models.session(model), task, heads, config.scoring)
        if found is None:
            return None
        rects, weights = found
        return Attention(rects.tolist(), weights.tolist())

    return record
