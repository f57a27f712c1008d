"""The study's models: what their files say, and loading them one after another."""

import dataclasses
from pathlib import Path
from typing import Any, Protocol

import jax
from jax.sharding import Mesh

from model_ports.block import DecoderConfig
from model_ports.convert.load import load_model, open_model
from model_ports.errors import UserError
from model_ports.port import Model, Port, with_options
from vrh_jax import organisms
from vrh_jax.config import ModelSettings, StudyConfig
from vrh_jax.data import smollm2
from vrh_jax.engine.session import Session

# Loaded models are kept while they fit into this many bytes together.
KEEP_BYTES = 2 * 2**30


@dataclasses.dataclass(frozen=True)
class ModelInfo:
    """What a checkpoint's config says."""

    port: Port
    decoder: DecoderConfig

    @property
    def shape(self) -> tuple[int, int]:
        """(layers, query heads)."""
        return self.decoder.layers, self.decoder.heads


def source_path(settings: ModelSettings) -> str | Path:
    """Folder or hub id of a model.

    ``organism:NAME`` is a model that ships with the package; ``smollm2:FOLDER`` is what
    ``vrh data smollm2 FOLDER`` writes.
    """
    scheme, _, rest = settings.source.partition(":")
    try:
        if scheme == smollm2.SCHEME:
            return smollm2.prepared(Path(rest))
        if scheme == "organism":
            return organisms.resolve(settings.source)
    except UserError as error:
        raise UserError(f"models.{settings.name}.source: {error}") from None
    return settings.source


def check_tokenizer(model: Model) -> None:
    """Refuse a tokenizer that is not the model's.

    Raises:
        UserError: ids beyond the embedding table, or no usable end token.
    """
    vocab = model.decoder.vocab
    tokenizer = model.processor.tokenizer
    size = len(tokenizer)
    if size > vocab:
        raise UserError(
            f"model {model.name!r}: its tokenizer has {size} tokens, but the model has {vocab} "
            "embeddings; they are from different checkpoints"
        )
    ends = model.processor.eos_ids
    if not ends or max(ends) >= vocab or min(ends) < 0:
        raise UserError(
            f"model {model.name!r}: end tokens {list(ends)} are not among its {vocab} tokens; "
            "check eos_token_id in generation_config.json and the tokenizer"
        )


def with_frame(model: Model, settings: ModelSettings) -> Model:
    """The model with the study's box frame in place of its port's.

    Raises:
        UserError: the model has no boxes, or states them in pixels of what it sees.
    """
    if settings.box_frame is None:
        return model
    box = model.port.box
    if box is None or box.units == "resized_pixels":
        units = "none" if box is None else "pixels of its input"
        raise UserError(
            f"models.{settings.name}.box_frame = {settings.box_frame!r} needs boxes in a scale of "
            f"the whole frame, but this model states {units}; leave box_frame out"
        )
    port = dataclasses.replace(model.port, box=dataclasses.replace(box, frame=settings.box_frame))
    return dataclasses.replace(model, port=port)


class Source(Protocol):
    """Where the models of a study come from."""

    def info(self, settings: ModelSettings) -> ModelInfo:
        """What the model's config says."""
        ...

    def load(self, settings: ModelSettings, mesh: Mesh | None) -> Model:
        """The model with its weights."""
        ...


class Checkpoints:
    """Models from checkpoint folders, the hub, and the package."""

    def info(self, settings: ModelSettings) -> ModelInfo:
        """Check all of a model's files; reads no weights."""
        try:
            model = open_model(source_path(settings), name=settings.name, dtype=settings.dtype)
            check_tokenizer(with_frame(_with_options(model, settings), settings))
        except UserError as error:
            if str(error).startswith(f"models.{settings.name}"):
                raise
            raise UserError(f"models.{settings.name} ({settings.source}): {error}") from None
        return ModelInfo(model.port, model.decoder)

    def load(self, settings: ModelSettings, mesh: Mesh | None) -> Model:
        """Load a model straight into its sharding."""
        model = load_model(
            source_path(settings), name=settings.name, dtype=settings.dtype, mesh=mesh
        )
        return _with_options(model, settings)


def _with_options(model: Model, settings: ModelSettings) -> Model:
    try:
        processor = with_options(model.processor, settings.processor)
    except UserError as error:
        raise UserError(f"models.{settings.name}.processor: {error}") from None
    return dataclasses.replace(model, processor=processor)


def _bytes(model: Model) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))


class Models:
    """Loads models on demand, and keeps those that fit in memory together.

    Args:
        fingerprints: model name -> fingerprint of an earlier run of this study, filled in as
            models are loaded.
    """

    def __init__(
        self,
        config: StudyConfig,
        mesh: Mesh | None,
        fingerprints: dict[str, Any],
        source: Source,
    ):
        self._config, self._mesh, self._source = config, mesh, source
        self._kept: dict[str, Model] = {}
        self.fingerprints = fingerprints

    def session(self, name: str) -> Session:
        """The named model, ready to work.

        Raises:
            UserError: its files are not the ones that this study began with.
        """
        if name not in self._kept:
            # Dropped before loading, so that two large models are never there together.
            if sum(map(_bytes, self._kept.values())) > KEEP_BYTES:
                self._kept.clear()
            model = self._source.load(self._config.model(name), self._mesh)
            model = with_frame(model, self._config.model(name))
            check_tokenizer(model)
            before = self.fingerprints.setdefault(name, model.fingerprint)
            if before != model.fingerprint:
                raise UserError(
                    f"model {name!r}: its files have changed since this study began "
                    f"({before} -> {model.fingerprint}); use another --out"
                )
            self._kept[name] = model
        return Session(self._kept[name], self._config.batch, self._mesh)
