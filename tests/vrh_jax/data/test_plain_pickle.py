"""Pickles of plain data are read; anything that could run code is refused by name."""

import collections
import contextlib
import datetime as dt
import fractions
import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refcoco import py2_pickle

from model_ports.errors import UserError
from vrh_jax.data.benchmarks.plain_pickle import load_plain_pickle

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("pickle") / "refs.p"


@given(value=PLAIN, protocol=st.sampled_from([0, 2]))
def test_what_python_2_wrote_comes_back(file, value, protocol):
    file.write_bytes(py2_pickle(value, protocol))
    assert load_plain_pickle(file) == value


@given(value=PLAIN, protocol=st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_what_python_3_wrote_comes_back(file, value, protocol):
    file.write_bytes(pickle.dumps(value, protocol))
    assert load_plain_pickle(file) == value


def test_containers_and_latin_1(file):
    value = {"t": (1, {2, 3}), "f": frozenset({4})}
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        file.write_bytes(pickle.dumps(value, protocol))
        assert load_plain_pickle(file) == value
    file.write_bytes(py2_pickle([b"caf\xe9", "café".encode()]))
    assert load_plain_pickle(file) == ["café", "café"]


class Runs:
    def __reduce__(self):
        return os.system, ("false",)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Runs(), r"\w+\.system"),
        ([{"deep": [Runs()]}], r"\w+\.system"),
        (np.arange(3), r"numpy.*"),
        (np.float32(1), r"numpy.*"),
        (collections.OrderedDict(a=1), r"collections\.OrderedDict"),
        (fractions.Fraction(1, 2), r"fractions\.Fraction"),
        (dt.date(2020, 1, 1), r"datetime\.date"),
        (len, r"builtins\.len|__builtin__\.len"),
        (3j, r"builtins\.complex|__builtin__\.complex"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_anything_else_is_refused_by_name(file, value, name, protocol):
    file.write_bytes(pickle.dumps(value, protocol))
    with pytest.raises(UserError, match=f"asks for ({name})"):
        load_plain_pickle(file)


def test_old_style_instances_and_persistent_ids_are_refused(file):
    file.write_bytes(b"(i__main__\nEvil\n.")
    with pytest.raises(UserError, match=r"__main__\.Evil"):
        load_plain_pickle(file)
    file.write_bytes(b"\x82\x01.")
    with pytest.raises(UserError, match="asks for the extension 1"):
        load_plain_pickle(file)
    file.write_bytes(b"Psomewhere\n.")
    with pytest.raises(UserError, match="persistent object 'somewhere'"):
        load_plain_pickle(file)


def test_shared_and_circular_containers(file):
    value = []
    for _ in range(200):
        value = [value, value]  # 2**200 leaves if it were unfolded
    file.write_bytes(pickle.dumps(value))
    found = load_plain_pickle(file)
    assert found[0] is found[1]
    value = []
    value.append(value)
    file.write_bytes(pickle.dumps(value))
    with pytest.raises(UserError, match="holds itself"):
        load_plain_pickle(file)


def test_a_few_bytes_do_not_fill_the_memory(file):
    file.write_bytes(b"]r\xff\xff\xff\x7f.")  # 34 GB in the implementation in C
    assert load_plain_pickle(file) == []


@given(data=st.binary(max_size=60))
def test_broken_pickles_raise_nothing_else(file, data):
    file.write_bytes(data)
    with contextlib.suppress(UserError):
        load_plain_pickle(file)


def test_messages_name_the_file(file):
    file.write_bytes(b"no pickle")
    with pytest.raises(UserError, match=r"refs\.p: not a readable pickle"):
        load_plain_pickle(file)
    with pytest.raises(UserError, match=r"absent\.p: no such file"):
        load_plain_pickle(file.with_name("absent.p"))
