"""Processes that see different files: they agree on failed images, and refuse other samples."""

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from model_ports.errors import UserError
from model_ports.prompt import Prompt
from vrh_jax.data.prompts import TaskPrompt
from vrh_jax.data.sample import Sample
from vrh_jax.engine import distributed
from vrh_jax.engine.batching import Ready, Task
from vrh_jax.study.detection import agreed


@pytest.fixture
def other(monkeypatch):
    """A second process, whose answers to gathering and broadcasting are given."""
    said = {"flags": None, "values": []}

    def gather(own):
        flags = own if said["flags"] is None else np.array(said["flags"], np.int32)
        return np.stack([np.asarray(own), np.asarray(flags).reshape(np.shape(own))])

    def broadcast(own):
        return said["values"].pop(0) if said["values"] else own

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(multihost_utils, "process_allgather", gather)
    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", broadcast)
    return said


def ready(name, error=""):
    sample = Sample(name, "text", "?", None, (0, 0), None, "x", name, name)
    prompt = None if error else object.__new__(Prompt)
    return Ready(Task(sample, object.__new__(TaskPrompt)), prompt, error)


def test_an_image_that_one_host_lacks_fails_everywhere(other):
    other["flags"] = [0, 1, 0]
    block = [ready("a"), ready("b"), ready("c", "broken")]
    found = agreed(block)
    assert [item.prompt is None for item in found] == [False, True, True]
    assert "another process" in found[1].error
    assert found[2].error == "broken"


def test_one_process_changes_nothing():
    block = [ready("a"), ready("b", "broken")]
    assert agreed(block) == block


def test_other_samples_are_refused(other):
    distributed.check_same([["a", 3, 4]], "samples")
    theirs = np.frombuffer(b'"another digest"', np.uint8)
    other["values"] = [np.int32(len(theirs)), theirs]
    with pytest.raises(UserError, match="different samples"):
        distributed.check_same([["a", 3, 4]], "samples")
