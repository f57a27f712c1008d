"""The organisms' scenes as a task of a study."""

from pydantic import Field

from vrh_jax.data.organism import organism_samples
from vrh_jax.data.registry import Split, Task
from vrh_jax.data.sample import Sample
from vrh_jax.strict import Strict


class OrganismOptions(Strict):
    """Options of the task ``organism``."""

    task: str = Field(
        "grounding", description="grounding, questions (all kinds in turn), or a kind of question"
    )
    seed: int = Field(0, ge=0, description="seed of the scenes")
    per_image: int = Field(1, gt=0, description="samples per scene")


def load(options: OrganismOptions, split: Split, count: int) -> list[Sample]:
    """``count`` samples of a split, on scenes that no other split has."""
    return organism_samples(options.task, split, count, options.seed, per_image=options.per_image)


TASK = Task(options=OrganismOptions, load=load, generated=True)
