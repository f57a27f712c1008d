"""What a port consists of, and a loaded model.

A port is one row: how to read a config.json, build the abstract model, name the file's
tensors, prepare prompts and write and read boxes.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from PIL import Image

from model_ports.block import DecoderConfig
from model_ports.box_format import BoxFormat
from model_ports.convert.rules import Rule
from model_ports.errors import UserError
from model_ports.prompt import Prompt
from model_ports.vlm import VLM


class Processor(Protocol):
    """Host-side preparation for one checkpoint: tokenizer, template and pixels."""

    @property
    def tokenizer(self) -> Any:
        """The checkpoint's tokenizer."""
        ...

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Any of these tokens ends an answer."""
        ...

    def prepare(
        self, text: str, images: Sequence[Image.Image] = (), *, image_first: bool = True
    ) -> Prompt:
        """Render one user turn through the checkpoint's chat template, ready to answer."""
        ...

    def resized(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """(width, height) of the frame that the model sees for a stored (width, height)."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Answer text, special tokens kept (some of them carry the box), without end tokens."""
        ...


P = TypeVar("P", bound=Processor)


def with_options(processor: P, options: Mapping[str, Any]) -> P:
    """The processor with options of its family set.

    Args:
        options: fields that the processor's ``OPTIONS`` lists with their types, for instance
            ``thinking`` of GLM-4.6V.

    Raises:
        UserError: an option that this processor does not have, or of the wrong type.
    """
    known: Mapping[str, type] = getattr(processor, "OPTIONS", {})
    for name, value in options.items():
        if name not in known:
            raise UserError(
                f"this model's processor has no option {name!r}; it has: "
                f"{', '.join(known) or 'none'}"
            )
        if not isinstance(value, known[name]):
            raise UserError(f"processor option {name} = {value!r}; expected {known[name].__name__}")
    return dataclasses.replace(processor, **options) if options else processor  # type: ignore[type-var]


@dataclasses.dataclass(frozen=True)
class Port:
    """One model family.

    Attributes:
        family: folder name under ``vlms`` (or ``backbones`` for text models).
        model_types: values of config.json's ``model_type`` that this port reads.
        read_config: strict reader; refuses unknown attributes by name (UserError).
        build: constructs the model; run under ``nnx.eval_shape`` for the abstract one.
        layouts: the known on-disk layouts, name -> rules.
        processor: builds the Processor from a checkpoint folder.
        box: how it states boxes; None for text models.
        names: the study's names for published checkpoints -> hub ids.
        settle: (config, names of the file's tensors) -> config, for what only the file can
            tell: whether there is an output head, where the config's flag is a mere default.
    """

    family: str
    model_types: tuple[str, ...]
    read_config: Callable[[Mapping[str, Any]], Any]
    build: Callable[[Any, nnx.Rngs, jnp.dtype], VLM]
    layouts: Callable[[Any], Mapping[str, Sequence[Rule]]]
    processor: Callable[[Path, Any], Processor]
    box: BoxFormat | None
    names: Mapping[str, tuple[str, ...]]
    settle: Callable[[Any, Collection[str]], Any] | None = None


@dataclasses.dataclass(frozen=True)
class Model:
    """A loaded checkpoint. ``params`` is a plain nested dict, the argument of jitted passes.

    Attributes:
        name: what the user calls it.
        port, config: as read from the checkpoint's folder.
        graphdef: static structure; ``nnx.merge(graphdef, params)`` rebuilds the module.
        params: nested dict of arrays.
        processor: prompts and answers.
        fingerprint: hash over config and weights, for the keys of result rows.
    """

    name: str
    port: Port
    config: Any
    graphdef: nnx.GraphDef[VLM]
    params: dict[str, Any]
    processor: Processor
    fingerprint: str

    @cached_property
    def decoder(self) -> DecoderConfig:
        """Shape of the language backbone."""
        return self.config.decoder


def abstract_model(
    port: Port, config: Any, dtype: jnp.dtype = jnp.float32
) -> tuple[nnx.GraphDef[VLM], dict[str, Any]]:
    """(graphdef, nested dict of ShapeDtypeStruct) without allocating anything."""
    model = nnx.eval_shape(lambda: port.build(config, nnx.Rngs(0), dtype))
    graphdef, state = nnx.split(model)
    return graphdef, nnx.to_pure_dict(state)


def random_params(
    port: Port, config: Any, seed: int, dtype: jnp.dtype = jnp.float32
) -> tuple[nnx.GraphDef[VLM], dict[str, Any]]:
    """(graphdef, initialised parameters)."""
    graphdef, state = nnx.split(port.build(config, nnx.Rngs(seed), dtype))
    return graphdef, nnx.to_pure_dict(state)


def parameter_count(tree: Any) -> int:
    """Number of scalars in a parameter tree (abstract or not)."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))
