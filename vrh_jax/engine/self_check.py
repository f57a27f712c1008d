"""Is a sharded run the same as an unsharded one? A small decoder with given weights.

Axis letters: B batch, T sequence, R key sets, L layers, N heads.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from model_ports.images.token_grid import TokenGrid
from model_ports.nn.attention import Tap, Tapped
from model_ports.prompt import Prompt
from model_ports.sharding import param_shardings
from model_ports.vlm import VLM
from vrh_jax.engine.batching import make_batch
from vrh_jax.engine.distributed import place, place_batch, replicated, using
from vrh_jax.engine.generate import generate


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run computed.

    Attributes:
        logits: float32 [B, T, vocab] under a random head mask per row.
        tapped: attention of two rows to two random key sets.
        tokens: int32 [B, new], greedy answers under the same masks.
        attention: the placed attention parameters.
        program: text of the compiled scoring pass.
    """

    logits: jax.Array | np.ndarray
    tapped: Tapped
    tokens: jax.Array | np.ndarray
    attention: dict[str, Any]
    program: str


class SelfCheck:
    """A text model and a batch of random prompts with masks and taps.

    Args:
        graphdef, params: of a VLM without images; params as host arrays.
        rows: B; fewer prompts than rows are made, the batch is padded.
        new: tokens that each row answers.
    """

    def __init__(self, graphdef: nnx.GraphDef[VLM], params: Any, *, rows: int, new: int) -> None:
        self.graphdef, self.params, self.new = graphdef, params, new
        cfg = nnx.merge(graphdef, params).decoder.cfg
        rng = np.random.default_rng(0)
        count = max(1, rows - 3)
        self.prompts = [_prompt(rng, int(n), cfg.vocab) for n in rng.integers(5, 20, count)]
        self.batch = make_batch(self.prompts, rows=rows, multiple=16)
        slots = self.batch.tokens.shape[1]
        sets = rng.uniform(0, 1, (rows, 2, slots)).astype(np.float32)
        taps = np.tile(np.array([slots - 3, slots - 1], np.int32), (rows, 1))
        self.tap = Tap(rows=taps, sets=sets)  # type: ignore[arg-type]
        self.mask = rng.integers(0, 2, (rows, cfg.layers, cfg.heads)).astype(np.float32)

        def score(params: Any, batch: Any, tap: Tap, mask: jax.Array) -> Any:
            model = nnx.merge(graphdef, params)
            hidden, _, tapped = model.decoder(model.embed(batch), head_mask=mask, tap=tap)
            return model.decoder.logits(hidden), tapped

        self._score = jax.jit(score)

    def run(self, mesh: Mesh | None) -> Outcome:
        """Score and answer on a mesh, or on the default device."""
        params = self.params
        if mesh is not None:
            params = jax.tree.map(
                lambda leaf, sharding: jax.make_array_from_callback(
                    leaf.shape, sharding, lambda index: leaf[index]
                ),
                params,
                param_shardings(params, mesh),
            )
        with using(mesh):
            batch, mask = place_batch(self.batch, mesh), place(self.mask, mesh)
            arguments = (params, batch, place(self.tap, mesh), mask)
            compiled = self._score.lower(*arguments).compile()
            logits, tapped = compiled(*arguments)
            answer = generate(
                self.graphdef, params, batch, max_new=self.new, eos_ids=(0,), head_mask=mask
            )
        attention = params["decoder"]["layers"]["attn"]
        return Outcome(logits, tapped, answer.tokens, attention, compiled.as_text() or "")

    def alone(self) -> Outcome:
        """The run on this process's first device only, as host arrays."""
        with jax.default_device(jax.local_devices()[0]):
            return _on_host(self.run(None))


def whole(outcome: Outcome, mesh: Mesh) -> Outcome:
    """Results of a sharded run as host arrays; every process of the mesh must call this."""
    with using(mesh):
        logits, tapped = jax.jit(replicated)((outcome.logits, outcome.tapped))
    return _on_host(dataclasses.replace(outcome, logits=logits, tapped=tapped))


def relative_error(actual: jax.Array | np.ndarray, expected: jax.Array | np.ndarray) -> float:
    """Largest difference relative to the largest expected value."""
    return float(np.abs(np.asarray(actual) - expected).max() / np.abs(expected).max())


def _on_host(outcome: Outcome) -> Outcome:
    return dataclasses.replace(
        outcome,
        logits=np.asarray(outcome.logits),
        tapped=jax.tree.map(np.asarray, outcome.tapped),
        tokens=np.asarray(outcome.tokens),
    )


def _prompt(rng: np.random.Generator, length: int, vocab: int) -> Prompt:
    return Prompt(
        text="",
        tokens=rng.integers(1, vocab, length).astype(np.int32),
        positions=np.arange(length, dtype=np.int32)[None],
        visual_index=np.full(length, -1, np.int32),
        grid=TokenGrid.empty(),
        images={},
    )
