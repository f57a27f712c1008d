"""A loaded model at work: embeds a block once, answers it under many masks, scores it."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from model_ports.errors import UserError
from model_ports.port import Model
from model_ports.prompt import Prompt
from vrh_jax.config import BatchSettings, ScoringSettings
from vrh_jax.engine.batching import Ready, make_batch
from vrh_jax.engine.capture import capture, key_sets, make_request
from vrh_jax.engine.distributed import place, place_batch, using
from vrh_jax.engine.generate import Embedded, embed, generate


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a model said."""

    text: str
    tokens: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Session:
    """A model with the devices and batch sizes it runs on."""

    model: Model
    batch: BatchSettings
    mesh: Mesh | None = None

    @property
    def threads(self) -> int:
        """Threads that answer masks at once: programs of small models leave CPU cores idle.

        None with a mesh: collectives of two threads may meet in different orders on two
        processes, and hang.
        """
        on_cpu = self.mesh is None and jax.default_backend() == "cpu"
        return self.batch.workers if on_cpu else 0

    def embed(self, prompts: Sequence[Prompt]) -> Embedded:
        """Input of a block (at most ``batch.generate`` prompts) on the devices.

        Images are encoded here, once for all masks.
        """
        rows = self.batch.generate
        batch = make_batch(prompts, rows=rows, multiple=self.batch.bucket)
        with using(self.mesh):
            return embed(self.model.graphdef, self.model.params, place_batch(batch, self.mesh))

    def answer(
        self, embedded: Embedded, count: int, max_new: int, mask: np.ndarray | None = None
    ) -> list[Answer]:
        """Greedy answers of the first ``count`` rows.

        Args:
            mask: float32 [layers, heads], 0 removes a head.
        """
        decoder = self.model.decoder
        if mask is None:
            # The same compiled program as with a mask.
            mask = np.ones((decoder.layers, decoder.heads), np.float32)
        with using(self.mesh):
            out = generate(
                self.model.graphdef,
                self.model.params,
                embedded,
                max_new=max_new,
                eos_ids=self.model.processor.eos_ids,
                head_mask=jnp.asarray(mask),
            )
            tokens = np.asarray(jax.device_get(out.tokens))
        kept = [tuple(int(t) for t in row if t >= 0) for row in tokens[:count]]
        return [Answer(self.model.processor.decode(row), row) for row in kept]

    def scores(
        self, ready: Sequence[Ready], answers: Sequence[Answer], settings: ScoringSettings
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Scores of a block of samples with their own answers (all with a prompt).

        Returns:
            (score name -> float32 [n, L, N], number of rows that counted, int [n]).
        """
        processor = self.model.processor
        scored = []
        for item, answer in zip(ready, answers, strict=True):
            if item.prompt is None:
                raise UserError(f"sample {item.sample.id!r} has no prompt to score")
            scored.append(key_sets(processor, item.prompt, item.sample, answer.tokens, settings))
        parts = []
        size = self.batch.score
        for start in range(0, len(scored), size):
            chunk = scored[start : start + size]
            batch = make_batch([s.prompt for s in chunk], rows=size, multiple=self.batch.bucket)
            request = make_request(chunk, batch, settings)
            with using(self.mesh):
                out = capture(
                    self.model.params,
                    place_batch(batch, self.mesh),
                    place(request, self.mesh),
                    graphdef=self.model.graphdef,
                )
                parts.append({k: np.asarray(v)[: len(chunk)] for k, v in out.items()})
        stacked = {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}
        return stacked, np.array([len(s.chosen) for s in scored], np.int32)
