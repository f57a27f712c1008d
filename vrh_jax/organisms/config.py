"""Checked settings of organism training (YAML)."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from vrh_jax.organisms.vocab import Style
from vrh_jax.strict import Strict, parse_settings, read_yaml

Kind = Literal["color", "shape", "size", "spatial", "count", "exist"]


class DecoderShape(Strict):
    """The language backbone; dim = heads * head_dim, as in every Qwen2.5-VL."""

    layers: int = Field(8, ge=1)
    heads: int = Field(8, ge=1)
    kv_heads: int = Field(4, ge=1)
    head_dim: int = Field(12, ge=2, multiple_of=2)
    mlp_dim: int = Field(160, ge=1)
    rope_theta: float = 10000.0

    @property
    def dim(self) -> int:
        """Model width."""
        return self.heads * self.head_dim

    @model_validator(mode="after")
    def _grouped(self) -> "DecoderShape":
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} must be a multiple of kv_heads {self.kv_heads}")
        return self


class VisionShape(Strict):
    """The vision tower of either port; 4-pixel patches, 2 x 2 of them per visual token."""

    depth: int = Field(3, ge=1)
    dim: int = Field(64, ge=8)
    heads: int = Field(4, ge=1)
    mlp_dim: int = Field(128, ge=1)


class Stage(Strict):
    """Some steps with one kind of batch and one set of loss weights.

    Attributes:
        steps: at most this many.
        until: stop when the running share of right boxes (all coordinates) exceeds this.
        counts: objects per scene.
        simple: expressions by attributes only.
        short: box answers stop after the first coordinate.
        cells: one visual token per image cell instead of one per object (backbone only).
        scenes, per_scene: batch size is their product.
        length: tokens per sequence.
        boxes: share of box queries, the rest are questions of the given kinds.
        question_weight: loss weight of a question's answer; each coordinate of a box has 1.
        lr: multiplies all learning rates; decays linearly to ``lr_end`` of it.
        decoder_lr, tower_lr: further factors for the decoder and for the vision side.
        mass, sparse, wrapper, dropout, noise: see ``losses.Knobs``.
    """

    name: str
    steps: int = Field(ge=1)
    until: float = 2.0
    counts: tuple[int, int] = (3, 6)
    simple: bool = False
    short: bool = False
    cells: bool = False
    scenes: int = Field(16, ge=1)
    per_scene: int = Field(16, ge=1)
    length: int = Field(40, ge=16)
    boxes: float = Field(0.6, ge=0, le=1)
    kinds: tuple[Kind, ...] = ("color", "shape", "size", "spatial", "count", "exist")
    question_weight: float = Field(1.0, ge=1)
    lr: float = Field(1.0, gt=0)
    lr_end: float = Field(1.0, ge=0)
    decoder_lr: float = Field(1.0, ge=0)
    tower_lr: float = Field(1.0, ge=0)
    mass: float = Field(0.0, ge=0)
    sparse: float = Field(0.0, ge=0)
    wrapper: float = Field(0.0, ge=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    noise: float = Field(0.0, ge=0)


class VisionPhase(Strict):
    """The two phases before the whole model is tuned; ``lr`` as in ``Stage``.

    Attributes:
        tower_steps: on dense targets.
        align_steps: one or more cycles of the learning rate.
        scenes: images per step.
    """

    tower_steps: int = Field(600, ge=1)
    align_steps: tuple[int, ...] = (700,)
    scenes: int = Field(32, ge=1)
    lr: float = Field(1.5, gt=0)
    align_lr: float = Field(0.5, gt=0)


class OrganismModel(Strict):
    """One VLM: a port's vision side on a backbone, and how it is tuned."""

    style: Style
    backbone: str
    vision: VisionShape = VisionShape()
    prepare: VisionPhase = VisionPhase()
    tune: tuple[Stage, ...]


class Backbone(Strict):
    """One symbolic backbone."""

    seed: int
    stages: tuple[Stage, ...]


class OrganismConfig(Strict):
    """Everything ``vrh organism train`` needs; the same file and seed give the same weights.

    Attributes:
        backbones, models: by name; ``models.*.backbone`` names a backbone.
        muon_lr: learning rate of the decoder's matrices (Muon).
        adam_lr: learning rate of everything else.
        save_every: steps between checkpoints.
    """

    seed: int = 0
    decoder: DecoderShape = DecoderShape()
    backbones: dict[str, Backbone]
    models: dict[str, OrganismModel]
    muon_lr: float = Field(0.02, gt=0)
    adam_lr: float = Field(2e-3, gt=0)
    save_every: int = Field(200, ge=1)

    @model_validator(mode="after")
    def _known_backbones(self) -> "OrganismConfig":
        for name, model in self.models.items():
            if model.backbone not in self.backbones:
                known = ", ".join(sorted(self.backbones))
                raise ValueError(f"models.{name}.backbone is {model.backbone!r}; known: {known}")
        return self


def read_config(path: Path) -> OrganismConfig:
    """A YAML file.

    Raises:
        UserError: file missing, not YAML, or not a valid configuration.
    """
    return parse_settings(OrganismConfig, read_yaml(path), str(path))
