"""Runs a study of copying models in a process of its own, for tests that kill it.

    python -m support.study_worker CONFIG.json [KILL_AT]
    python -m support.study_worker CONFIG.json PORT PROCESSES INDEX

KILL_AT: kill this process (SIGKILL) before its n-th write or answer. The second form is one of
several processes of a run.
"""

import itertools
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from support.copy_model import CopySource

from vrh_jax.config import StudyConfig
from vrh_jax.engine import session, store
from vrh_jax.engine.distributed import Coordinator, initialise
from vrh_jax.strict import parse_settings
from vrh_jax.study import evaluation
from vrh_jax.study.run import run_study


def _arm(kill_at: int) -> None:
    """Count answers, writes and renames, and die at one of them."""
    count = itertools.count(1)

    def tick() -> None:
        if next(count) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            tick()
            return function(*args, **kwargs)

        return call

    session.Session.answer = watched(session.Session.answer)
    store.Parts.add = watched(store.Parts.add)
    store.Parts.clear = watched(store.Parts.clear)
    os.fsync = watched(os.fsync)
    Path.replace = watched(Path.replace)
    evaluation.SAVE_EVERY = 0.0


def main() -> None:
    raw = json.loads(Path(sys.argv[1]).read_text())
    numbers = [int(value) for value in sys.argv[2:]]
    if len(numbers) == 1:
        _arm(*numbers)
    elif numbers:
        port, processes, index = numbers
        initialise(Coordinator(f"localhost:{port}", processes, index))
    # Numbers and figures add nothing here, and drawing takes longer than all the rest.
    config = parse_settings(StudyConfig, raw, "test")
    outcome = run_study(config, until="evaluate", source=CopySource())
    print(json.dumps({"worked": outcome.worked}))


if __name__ == "__main__":
    main()
