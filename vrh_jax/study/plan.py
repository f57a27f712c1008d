"""What a study will do, checked before any of it is done."""

import dataclasses
from collections import Counter
from typing import Any

from model_ports.errors import UserError
from vrh_jax.config import StudyConfig
from vrh_jax.data.prompts import TaskPrompt, check_names, task_prompt
from vrh_jax.data.sample import Sample
from vrh_jax.data.split import study_samples
from vrh_jax.engine.batching import Task
from vrh_jax.heads.scoring import SCORES
from vrh_jax.strict import nearest
from vrh_jax.study.models import ModelInfo, Source


@dataclasses.dataclass(frozen=True)
class Plan:
    """A checked study.

    Attributes:
        detection: samples on which heads are scored.
        evaluation: benchmark -> samples, in order.
        infos: model -> what its config says.
        prompts: (model, benchmark, kind of sample) -> prompt.
    """

    config: StudyConfig
    detection: list[Sample]
    evaluation: dict[str, list[Sample]]
    infos: dict[str, ModelInfo]
    prompts: dict[tuple[str, str, str], TaskPrompt]

    def tasks(self, model: str, benchmark: str, samples: list[Sample]) -> list[Task]:
        """Samples of a benchmark with a model's prompts."""
        return [Task(s, self.prompts[model, benchmark, s.kind]) for s in samples]

    def wordings(self) -> dict[str, Any]:
        """The prompts as plain values, for study.json and the summary."""
        return {
            " ".join(key): {
                "template": prompt.template,
                "expression": prompt.expression,
                "image_first": prompt.image_first,
                "max_new": prompt.max_new,
                "source": prompt.source,
            }
            for key, prompt in self.prompts.items()
        }

    def listing(self) -> list[Any]:
        """What decides the batches: ids and stored sizes of all samples, in order."""
        groups = [self.detection, *self.evaluation.values()]
        return [[[s.id, *s.image_size] for s in group] for group in groups]

    def benchmark_of(self, sample: Sample) -> str:
        """The benchmark of one of this plan's samples."""
        found = (n for n, group in self.evaluation.items() if any(s is sample for s in group))
        return next(found, self.config.detection.benchmark)

    def head_sets(self, benchmark: str, model: str) -> int:
        """Number of masks of a model on a benchmark, the empty one included."""
        config = self.config
        entry = next(e for e in config.evaluation if e.benchmark == benchmark)
        others = sum(model in pair.models for pair in config.transfer.pairs)
        others *= benchmark in config.transfer_benchmarks
        kinds = len(config.controls.kinds)
        return 1 + sum(1 + others + kinds * config.draws(entry, k) for k in config.sizes(entry))

    def describe(self) -> dict[str, Any]:
        """The plan as plain values, for ``vrh plan``."""
        config = self.config
        answers = {
            (m.name, e.benchmark): self.head_sets(e.benchmark, m.name) * e.samples
            for m in config.models
            for e in config.evaluation
        }
        return {
            "study": config.name,
            "out": str(config.folder),
            "settings": config.hash(),
            "models": [
                {
                    "name": m.name,
                    "source": m.source,
                    "family": self.infos[m.name].port.family,
                    "layers": self.infos[m.name].shape[0],
                    "heads": self.infos[m.name].shape[1],
                }
                for m in config.models
            ],
            "detection": {
                "benchmark": config.detection.benchmark,
                "samples": len(self.detection),
                "images": len({s.image_id for s in self.detection}),
                "score": config.scoring.method,
            },
            "evaluation": [
                {
                    "model": model,
                    "benchmark": benchmark,
                    "samples": len(self.evaluation[benchmark]),
                    "kinds": dict(Counter(s.kind for s in self.evaluation[benchmark])),
                    "head_sets": self.head_sets(benchmark, model),
                    "answers": count,
                }
                for (model, benchmark), count in answers.items()
            ],
            "answers": sum(answers.values()) + len(config.models) * len(self.detection),
            "prompts": self.wordings(),
            "transfer": [[*pair.models, pair.backbone] for pair in config.transfer.pairs],
        }


def make_plan(config: StudyConfig, source: Source) -> Plan:
    """Check a study against its models and data; reads configs and samples, no weights.

    Raises:
        UserError: the first thing that would go wrong later.
    """
    if config.scoring.method not in SCORES:
        known = sorted(SCORES)
        raise UserError(
            f"scoring.method = {config.scoring.method!r} is unknown"
            f"{nearest(config.scoring.method, known)} (known: {known})"
        )
    infos = {m.name: source.info(m) for m in config.models}
    _check_ks(config, infos)
    _check_pairs(config, infos)
    detection, evaluation = study_samples(config)
    samples = [*detection, *(s for group in evaluation.values() for s in group)]
    for model in config.models:
        _check_kinds(model.name, infos[model.name], samples)
    prompts = _prompts(config, infos, detection, evaluation)
    return Plan(config, detection, evaluation, infos, prompts)


def _prompts(
    config: StudyConfig,
    infos: dict[str, ModelInfo],
    detection: list[Sample],
    evaluation: dict[str, list[Sample]],
) -> dict[tuple[str, str, str], TaskPrompt]:
    tasks = {name: benchmark.task for name, benchmark in config.benchmarks.items()}
    check_names("max_new", config.max_new, tasks)
    groups = [(config.detection.benchmark, detection), *evaluation.items()]
    asked = sorted({(name, s.kind) for name, group in groups for s in group})
    prompts: dict[tuple[str, str, str], TaskPrompt] = {}
    for model in config.models:
        check_names(f"models.{model.name}.templates", model.templates, tasks)
        family = infos[model.name].port.family
        for name, kind in asked:
            prompts[model.name, name, kind] = task_prompt(
                model, family, kind, config.max_new, task=tasks[name], benchmark=name
            )
    return prompts


def _check_ks(config: StudyConfig, infos: dict[str, ModelInfo]) -> None:
    for name, info in infos.items():
        layers, heads = info.shape
        for k in config.all_sizes:
            if k > layers * heads:
                raise UserError(
                    f"ks: {k} heads cannot be masked in model {name!r}, which has {layers} layers "
                    f"x {heads} heads = {layers * heads}"
                )
            if "random" in config.controls.kinds and 2 * k > layers * heads:
                raise UserError(
                    f"ks: for k = {k}, model {name!r} has only {layers * heads - k} other heads, "
                    f"too few for a random control; use k of at most {layers * heads // 2}, or "
                    "leave 'random' out of controls.kinds"
                )


def _check_pairs(config: StudyConfig, infos: dict[str, ModelInfo]) -> None:
    for pair in config.transfer.pairs:
        first, second = (infos[name].shape for name in pair.models)
        if first != second:
            raise UserError(
                f"transfer.pairs: {pair.models[0]!r} has {first[0]} layers x {first[1]} heads, "
                f"{pair.models[1]!r} has {second[0]} x {second[1]}; heads can only be compared "
                "between models of one shape"
            )


def _check_kinds(model: str, info: ModelInfo, samples: list[Sample]) -> None:
    if info.port.box is not None:
        return
    if any(s.image is not None for s in samples):
        raise UserError(
            f"model {model!r} reads text only, but the study's benchmarks have images; choose a "
            "vision-language model or the task 'needle'"
        )
