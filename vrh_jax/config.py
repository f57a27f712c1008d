"""The study's settings: what a YAML file may say, checked before any work is done.

Every key is documented on its field.
"""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from vrh_jax.strict import Name, Positive, Strict, nearest, parse_settings, read_yaml

ControlKind = Literal["random", "random_layer"]
# Settings that change how the work is done, but not what comes out.
EXECUTION = frozenset({"out", "batch", "mesh"})


class ModelSettings(Strict):
    """One model of the study."""

    name: Name = Field(description="what results call it")
    source: str = Field(
        description="Hugging Face folder, converted folder, hub id, or organism:NAME"
    )
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="type of the weights; default: as stored"
    )
    prompts: Name | None = Field(
        None, description="entry of prompts.yaml; default: the source's, name's or family's"
    )
    templates: dict[str, str] = Field(
        {},
        description="own prompts, by benchmark, task or kind of sample (grounding, text, ...), "
        "with {text} and for multiple choice {choices}",
    )
    image_first: bool | None = Field(
        None, description="image before the text; default: as prompts.yaml says"
    )
    processor: dict[str, Any] = Field(
        {}, description="options of the model's processor, e.g. {thinking: false} of GLM-4.6V"
    )
    box_frame: Literal["image", "padded_square"] | None = Field(
        None,
        description="what the model's box coordinates span: the image, or the square that it is "
        "padded to (LLaVA's training data has both); default: as its port says",
    )


class BenchmarkSettings(Strict):
    """A source of samples; ``vrh_jax.data.registry`` lists the tasks."""

    task: Name = Field(description="name of a task, or 'jsonl' for your own file")
    options: dict[str, Any] = Field({}, description="the task's own settings")


class DetectionSettings(Strict):
    """The samples on which heads are scored; their images are used for nothing else."""

    benchmark: Name = Field(description="name of a benchmark of this study")
    samples: Positive = Field(200, description="number of samples")


class EvaluationSettings(Strict):
    """One benchmark on which masked models answer."""

    benchmark: Name = Field(description="name of a benchmark of this study")
    samples: Positive = Field(description="number of samples")
    draws: Annotated[int, Field(ge=0)] | None = Field(
        None, description="random draws here; default: as controls say"
    )
    ks: tuple[Positive, ...] | None = Field(
        None, description="numbers of masked heads here; default: ks"
    )
    kinds: tuple[str, ...] = Field(
        (), description="restrict to these kinds of samples (grounding, text, ...); default all"
    )


class ScoringSettings(Strict):
    """How a head's score is made from attention rows."""

    method: Name = Field("region_sum", description="score by which heads are ranked")
    rows: Literal["pred", "own"] = Field(
        "pred", description="rows that predict the answer's tokens, or the tokens' own rows"
    )
    tokens: Literal["all", "coords", "first"] = Field(
        "all",
        description="answer tokens that count: all before the end token, those with a "
        "digit, or the first",
    )
    span: Literal["answer", "all"] = Field(
        "answer",
        description="which of these tokens are considered: those after a thinking block, or "
        "the block too",
    )
    region: Literal["any", "center", "coverage"] = Field(
        "any", description="when a visual token belongs to the box"
    )
    views: Literal["all", "whole", "tiles"] = Field(
        "all", description="views of a tiled image in which tokens count"
    )
    argmax_keys: Literal["all", "visual"] = Field(
        "all", description="keys that compete for the arg-max of hit and retrieval"
    )
    gate: Literal["all", "correct", "parsed"] = Field(
        "all", description="samples that count: all, answered correctly, or with a readable answer"
    )


class ControlSettings(Strict):
    """Random head sets that are masked for comparison."""

    kinds: tuple[ControlKind, ...] = Field(
        ("random", "random_layer"),
        description="uniform outside the chosen set; the same number per layer outside it",
    )
    draws: Annotated[int, Field(ge=0)] = Field(5, description="draws per kind and k")
    draws_at: dict[Positive, Annotated[int, Field(ge=0)]] = Field(
        {}, description="draws for single numbers of heads, e.g. {20: 19} for the main one"
    )
    seed: int = Field(0, description="seed of the draws")


class TransferPair(Strict):
    """Two models whose heads are compared and exchanged, in both directions."""

    models: tuple[Name, Name] = Field(description="names of two models of this study")
    backbone: Literal["shared", "separate"] = Field(
        "shared", description="'separate' marks a pair that serves as a control"
    )


class TransferSettings(Strict):
    """Comparison of the models' heads."""

    pairs: tuple[TransferPair, ...] = Field((), description="pairs; none turns transfer off")
    benchmarks: tuple[Name, ...] | None = Field(
        None, description="evaluated with the other model's heads; default: the detection one"
    )
    permutations: Positive = Field(2000, description="permutations for the null distributions")


class BatchSettings(Strict):
    """Sizes that trade memory for speed; results do not depend on them."""

    generate: Positive = Field(32, description="samples that answer together")
    score: Positive = Field(16, description="samples scored together")
    bucket: Positive = Field(32, description="prompt lengths are padded to a multiple of this")
    workers: Positive = Field(2, description="threads that read images ahead and, on CPU, answer")


class MeshSettings(Strict):
    """Devices: examples over ``data``, heads, MLP and vocabulary over ``tensor``."""

    data: Positive = Field(1, description="device groups that share the examples")
    tensor: Positive = Field(1, description="devices that share one model")


class StudyConfig(Strict):
    """A whole study."""

    name: Name = Field(description="title of the study")
    out: Path | None = Field(None, description="folder of the results; default results/NAME")
    models: Annotated[tuple[ModelSettings, ...], Field(min_length=1)]
    benchmarks: Annotated[dict[Name, BenchmarkSettings], Field(min_length=1)]
    detection: DetectionSettings
    evaluation: tuple[EvaluationSettings, ...] = ()
    scoring: ScoringSettings = ScoringSettings()
    ks: tuple[Positive, ...] = Field((5, 10, 20), description="numbers of masked heads")
    controls: ControlSettings = ControlSettings()
    transfer: TransferSettings = TransferSettings()
    max_new: dict[str, Positive] = Field(
        {},
        description="longest answer in tokens, by benchmark, task or kind of sample; "
        "default: prompts.yaml's",
    )
    split_seed: int = Field(0, description="seed of the split of images")
    batch: BatchSettings = BatchSettings()
    mesh: MeshSettings = MeshSettings()

    @field_validator("models")
    @classmethod
    def _unique_models(cls, models: tuple[ModelSettings, ...]) -> tuple[ModelSettings, ...]:
        names = [m.name for m in models]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"two models are called {twice[0]!r}; names must differ")
        return models

    @model_validator(mode="after")
    def _known_names(self) -> "StudyConfig":
        models = [m.name for m in self.models]
        benchmarks = sorted(self.benchmarks)
        _known("detection.benchmark", self.detection.benchmark, benchmarks)
        for entry in self.evaluation:
            _known("evaluation.benchmark", entry.benchmark, benchmarks)
        for name in self.transfer_benchmarks:
            _known("transfer.benchmarks", name, [e.benchmark for e in self.evaluation])
        for pair in self.transfer.pairs:
            for name in pair.models:
                _known("transfer.pairs", name, models)
            if pair.models[0] == pair.models[1]:
                raise ValueError(f"transfer.pairs: {pair.models[0]!r} is paired with itself")
        return self

    @model_validator(mode="after")
    def _usable_numbers(self) -> "StudyConfig":
        if not self.ks:
            raise ValueError("ks is empty; give at least one number of heads to mask")
        for where, sizes in (
            ("ks", self.ks),
            *((f"ks of {e.benchmark}", e.ks or ()) for e in self.evaluation),
        ):
            twice = sorted({k for k in sizes if sizes.count(k) > 1})
            if twice:
                raise ValueError(f"{where}: {twice[0]} is there twice")
        unused = sorted(set(self.controls.draws_at) - set(self.all_sizes))
        if unused:
            raise ValueError(f"controls.draws_at: no benchmark masks {unused[0]} heads")
        evaluated = [e.benchmark for e in self.evaluation]
        again = sorted({n for n in evaluated if evaluated.count(n) > 1})
        if again:
            raise ValueError(f"evaluation lists benchmark {again[0]!r} twice")
        for part in ("generate", "score"):
            size = getattr(self.batch, part)
            if size % self.mesh.data:
                raise ValueError(
                    f"batch.{part} = {size} does not divide over mesh.data = {self.mesh.data}"
                )
        return self

    def draws(self, entry: EvaluationSettings, k: int) -> int:
        """Random draws of each kind for k heads on a benchmark."""
        if entry.draws is not None:
            return entry.draws
        return self.controls.draws_at.get(k, self.controls.draws)

    def sizes(self, entry: EvaluationSettings) -> tuple[int, ...]:
        """Numbers of heads that are masked on a benchmark."""
        return entry.ks or self.ks

    @property
    def all_sizes(self) -> tuple[int, ...]:
        """Numbers of heads that are masked on any benchmark, ascending."""
        return tuple(sorted({*self.ks, *(k for e in self.evaluation for k in e.ks or ())}))

    @property
    def transfer_benchmarks(self) -> tuple[str, ...]:
        """Benchmarks evaluated with the other model's heads."""
        if not self.transfer.pairs:
            return ()
        if self.transfer.benchmarks is not None:
            return self.transfer.benchmarks
        evaluated = [e.benchmark for e in self.evaluation]
        return tuple(b for b in evaluated if b == self.detection.benchmark) or tuple(evaluated)

    @property
    def folder(self) -> Path:
        """Where results go."""
        return self.out or Path("results") / self.name

    def model(self, name: str) -> ModelSettings:
        """The settings of a model by name."""
        return next(m for m in self.models if m.name == name)

    def settings(self) -> dict[str, Any]:
        """Everything that results depend on, as plain JSON values."""
        return self.model_dump(mode="json", exclude=set(EXECUTION))

    def hash(self) -> str:
        """Short hash of ``settings``; part of every result row."""
        text = json.dumps(self.settings(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def _known(where: str, name: str, known: list[str]) -> None:
    if name not in known:
        raise ValueError(f"{where}: {name!r} is not there{nearest(name, known)} (known: {known})")


def load_config(path: Path, *, out: Path | None = None) -> StudyConfig:
    """Read and check a study file.

    Args:
        path: YAML file.
        out: replaces the file's ``out``.

    Raises:
        UserError: naming the file, the key and what was expected.
    """
    raw = read_yaml(path)
    if out is not None:
        raw["out"] = str(out)
    return parse_settings(StudyConfig, raw, str(path))
