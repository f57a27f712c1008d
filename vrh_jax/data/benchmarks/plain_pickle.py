"""Pickles of plain data: containers, strings and numbers; nothing that runs code.

RefCOCO's official release keeps its referring expressions in Python 2 pickles.
"""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from model_ports.errors import UserError
from vrh_jax.data.benchmarks.files import read_bytes

_SETS: dict[str, type] = {"set": set, "frozenset": frozenset}
# Marks a container whose members are being decoded.
_OPEN: Any = object()


def _latin_1(text: str, encoding: str = "") -> bytes:
    """What ``_codecs.encode`` does in such pickles, and nothing else."""
    if encoding not in ("latin1", "latin-1"):
        raise _RefusedError(f"_codecs.encode with {encoding!r}")
    return text.encode("latin-1")


class _RefusedError(Exception):
    """A pickle that asks for something other than plain data."""


class _PlainUnpickler(pickle._Unpickler):  # noqa: SLF001 - see below
    """Refuses every class but sets, every function, extension and persistent id.

    Based on the implementation in Python: that in C takes a number from the file as the length
    of a table, so that a few bytes can fill the memory.
    """

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        # Before protocol 4 there was no code for sets.
        if module in ("builtins", "__builtin__") and name in _SETS:
            return _SETS[name]
        # Bytes that Python 3 wrote with a protocol of Python 2.
        if (module, name) == ("_codecs", "encode"):
            return _latin_1
        if module in ("builtins", "__builtin__") and name == "bytes":
            return bytes
        raise _RefusedError(f"{module}.{name}")

    def get_extension(self, code: int) -> NoReturn:
        raise _RefusedError(f"the extension {code}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise _RefusedError(f"the persistent object {pid!r}")


def load_plain_pickle(path: Path) -> Any:
    """The value of a pickle file; byte strings of Python 2 become text (UTF-8, else Latin-1).

    Raises:
        UserError: not a pickle, or one that names a class or function; the message names it.
    """
    unpickler = _PlainUnpickler(io.BytesIO(read_bytes(path)), encoding="bytes")
    try:
        return _text(unpickler.load(), {})
    except _RefusedError as refused:
        raise UserError(
            f"{path}: this pickle asks for {refused}. Only lists, tuples, dicts, sets, strings "
            "and numbers are read, since anything else could run code; get the file from its "
            "owner again"
        ) from None
    except Exception as error:  # unpickling raises nearly every type on broken data
        raise UserError(
            f"{path}: not a readable pickle ({type(error).__name__}: {error})"
        ) from error


def _text(value: Any, done: dict[int, Any]) -> Any:
    """The value with bytes decoded, throughout.

    Args:
        done: containers that are decoded already, by id, since pickles share them.
    """
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.decode("latin-1")
    if not isinstance(value, dict | list | tuple | set | frozenset):
        return value
    if id(value) not in done:
        done[id(value)] = _OPEN
        if isinstance(value, dict):
            done[id(value)] = {_text(k, done): _text(v, done) for k, v in value.items()}
        else:
            done[id(value)] = type(value)(_text(v, done) for v in value)
    if done[id(value)] is _OPEN:
        raise ValueError("it holds itself")
    return done[id(value)]
