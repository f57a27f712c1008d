"""The organisms' tasks use the same samples, prompts, reader and scores as real benchmarks."""

import pytest

from model_ports.box_format import BoxFormat
from vrh_jax.answers import judge
from vrh_jax.config import BenchmarkSettings, ModelSettings
from vrh_jax.data.organism import TASKS
from vrh_jax.data.prompts import task_prompt
from vrh_jax.data.registry import load

FORMAT = BoxFormat("norm1000", "[[{x0}, {y0}, {x1}, {y1}]]")
CATEGORIES = {
    "grounding": "grounding", "color": "attribute/color", "shape": "attribute/shape",
    "size": "attribute/size", "spatial": "spatial", "count": "counting", "exist": "existence",
}  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_judged_as_any_benchmark(task):
    settings = BenchmarkSettings(task="organism", options={"task": task, "seed": 3})
    samples, generated = load("b", settings, "evaluation", 24)
    assert generated
    assert len(samples) == 24
    expected = {*CATEGORIES.values()} - {"grounding"} if task == "questions" else {CATEGORIES[task]}
    assert {s.category for s in samples} == expected
    model = ModelSettings(name="qwen", source="organism:qwen")
    for sample in samples:
        prompt = task_prompt(model, "qwen2_5_vl", sample.kind)
        assert sample.text in prompt.render(sample)
        assert sample.rule == ""
        said = sample.answer
        if sample.kind == "grounding":
            numbers = [1000 * v / sample.image_size[0] for v in sample.box]
            said = f"[[{', '.join(map(str, numbers))}]]"
        verdict = judge(sample, said, FORMAT, sample.image_size)
        assert verdict.correct
        assert verdict.official
        assert judge(sample, "", FORMAT, sample.image_size).failure == "parse_failure"
        others = {*sample.choices} - {sample.answer}
        assert not any(judge(sample, other).correct for other in others)
