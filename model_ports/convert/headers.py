"""Headers of a folder of safetensors files, checked before anything is read from them."""

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from model_ports.convert.safetensors_file import (
    AGAIN,
    CODES,
    DTYPES,
    SAFE,
    TensorInfo,
    read_header,
)
from model_ports.errors import UserError

__all__ = ["CODES", "DTYPES", "INDEX", "Headers", "TensorInfo", "fsync", "read_headers"]

INDEX = "model.safetensors.index.json"

_UNSAFE = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_OTHER = (".gguf", ".h5", ".msgpack", ".npz", ".onnx")


@dataclasses.dataclass(frozen=True)
class Headers:
    """All tensors of a folder.

    Attributes:
        files: the safetensors files, in order.
        tensors: name -> where it lies.
    """

    folder: Path
    files: tuple[Path, ...]
    tensors: Mapping[str, TensorInfo]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in self.tensors.values())

    @property
    def largest(self) -> int:
        """Bytes of the largest tensor."""
        return max((t.nbytes for t in self.tensors.values()), default=0)


def read_headers(folder: Path) -> Headers:
    """Read and check the headers of all safetensors files of a checkpoint folder.

    Raises:
        UserError: no safetensors; missing, truncated or damaged file; a tensor that is twice
            there, or whose bytes overlap another's; an index that does not match the files.
    """
    index = _find_index(folder)
    files = _indexed_files(folder, index) if index else _plain_files(folder)
    tensors: dict[str, TensorInfo] = {}
    for file in files:
        for name, info in read_header(file).items():
            if name in tensors:
                raise UserError(
                    f"tensor {name!r} is in two files, {tensors[name].path.name} and {file.name} "
                    f"of {folder}; remove the file that does not belong to this checkpoint"
                )
            tensors[name] = info
    if index:
        _check_index(folder, index, tensors)
    if not tensors:
        raise UserError(f"{folder}: the safetensors files hold no tensor")
    return Headers(folder, tuple(files), tensors)


def _find_index(folder: Path) -> dict[str, str] | None:
    """The ``weight_map`` (tensor -> file) of the folder's index, if there is one."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the folder of a checkpoint")
    found = sorted(folder.glob("*.safetensors.index.json"))
    if not found:
        return None
    if len(found) > 1:
        names = ", ".join(p.name for p in found)
        raise UserError(f"{folder} holds several indexes ({names}); keep the one that is meant")
    if (folder / "model.safetensors").exists():
        raise UserError(
            f"{folder} holds both model.safetensors and {found[0].name}, two copies or two "
            "checkpoints; remove the one that is not meant"
        )
    try:
        weight_map = json.loads(found[0].read_text())["weight_map"]
        pairs = {str(k): str(v) for k, v in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise UserError(
            f"{found[0]} is not a safetensors index (a JSON object with 'weight_map'): {error}. "
            f"{AGAIN}"
        ) from error
    for name in set(pairs.values()):
        if name in ("", ".", "..") or "/" in name or "\\" in name:
            raise UserError(f"{found[0]} names the file {name!r}; only files beside it are read")
    return pairs


def _indexed_files(folder: Path, index: Mapping[str, str]) -> list[Path]:
    names = sorted(set(index.values()))
    for name in names:
        if not (folder / name).is_file():
            first = next(tensor for tensor, file in index.items() if file == name)
            raise UserError(
                f"{folder}: file {name} is missing; the index says that it holds "
                f"{sum(f == name for f in index.values())} tensors ({first}, ...). Download it"
            )
        if not name.endswith(".safetensors"):
            raise UserError(f"{folder}: the index names {name}, which is no safetensors. {SAFE}")
    return [folder / name for name in names]


def _plain_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if (folder / "adapter_config.json").exists():
        raise UserError(
            f"{folder} holds an adapter (adapter_config.json), not a model; merge it into its "
            "base model first (peft: merge_and_unload, then save_pretrained)"
        )
    if not files:
        _refuse_other_formats(folder)
    for file in files:
        match = re.fullmatch(r"(.*)-(\d+)-of-(\d+)\.safetensors", file.name)
        if not match:
            continue
        stem, width, count = match[1], len(match[2]), int(match[3])
        for number in range(1, count + 1):
            name = f"{stem}-{number:0{width}d}-of-{match[3]}.safetensors"
            if not (folder / name).is_file():
                raise UserError(
                    f"{folder}: file {name} is missing ({file.name} is one of {count}). Download it"
                )
    return files


def _refuse_other_formats(folder: Path) -> None:
    names = sorted(p.name for p in folder.iterdir())
    unsafe = [n for n in names if n.endswith(_UNSAFE)]
    if unsafe:
        raise UserError(f"{folder} holds {unsafe[0]} but no safetensors. {SAFE}")
    other = [n for n in names if n.endswith(_OTHER)]
    if other:
        raise UserError(
            f"{folder} holds {other[0]} but no safetensors, the only format that is read; take "
            "the checkpoint's original repository, or convert it to a Hugging Face folder first"
        )
    raise UserError(
        f"{folder} holds no *.safetensors file; give the folder with config.json and the weights"
    )


def _check_index(folder: Path, index: Mapping[str, str], tensors: Mapping[str, TensorInfo]) -> None:
    for name, file in index.items():
        info = tensors.get(name)
        if info is None or info.path.name != file:
            where = f"; it is in {info.path.name}" if info else ""
            raise UserError(
                f"{folder}: the index says that tensor {name!r} is in {file}, but that file does "
                f"not hold it{where}. Index and files are of different versions; download all"
            )
    for name, info in tensors.items():
        if name not in index:
            raise UserError(
                f"{folder}: tensor {name!r} of {info.path.name} is not in the index. Index and "
                "files are of different versions; download all"
            )


def fsync(path: Path) -> None:
    """Flush a file (or the names in a folder) to disk, so that a power cut keeps it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
