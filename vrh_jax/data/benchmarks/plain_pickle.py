"""Pickles of plain data: containers, strings and numbers; nothing that runs code.

RefCOCO's official release keeps its referring expressions in Python 2 pickles.
"""

import io
import pickle
from pathlib import Path
from typing import Any, NoReturn

from model_ports.errors import UserError
from vrh_jax.data.benchmarks.files import read_bytes

_DEEPEST = 100


class _RefusedError(Exception):
    """A pickle that asks for something other than plain data."""


class _PlainUnpickler(pickle.Unpickler):
    """Refuses every class, function, extension and persistent id."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _RefusedError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise _RefusedError(f"the persistent object {pid!r}")


def load_plain_pickle(path: Path) -> Any:
    """The value of a pickle file; byte strings of Python 2 become text (UTF-8, else Latin-1).

    Raises:
        UserError: not a pickle, or one that names a class or function; the message names it.
    """
    unpickler = _PlainUnpickler(io.BytesIO(read_bytes(path)), encoding="bytes")
    try:
        return _text(unpickler.load(), 0)
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


def _text(value: Any, depth: int) -> Any:
    """The value with bytes decoded, throughout."""
    if depth > _DEEPEST:
        raise ValueError(f"nested deeper than {_DEEPEST}, or in a circle")
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.decode("latin-1")
    if isinstance(value, dict):
        return {_text(k, depth + 1): _text(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(_text(v, depth + 1) for v in value)
    return value
