"""The conversion plan: every file tensor used exactly once, every parameter filled exactly once.

A plan is built from config.json, the port's layouts and the file headers, before any weight is
read. Anything that is left over, missing or of another shape is refused by name.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_ports.configs import read_json
from model_ports.convert.headers import CODES, DTYPES, Headers, TensorInfo, read_headers
from model_ports.convert.match import Match, match_layout, offenders, table_faults
from model_ports.convert.pieces import Target, common_dtype, flatten, linear_inputs
from model_ports.errors import UserError
from model_ports.port import Port, abstract_model
from model_ports.registry import port_for
from model_ports.vlm import VLM

KEPT_DTYPES: Mapping[str, np.dtype] = {
    DTYPES[code].name: DTYPES[code] for code in ("BF16", "F16", "F32")
}
_CASTABLE = {DTYPES[code] for code in ("F64", "F8_E4M3", "F8_E5M2")} | set(KEPT_DTYPES.values())


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a conversion will do.

    Attributes:
        raw_config: config.json as read.
        layout: name of the on-disk layout that fits.
        targets: parameter path -> what fills it, sorted by path.
        copies: file tensors that repeat another one (a tied head), verified equal.
        skipped: file tensors without effect on the model.
        dtype: the requested cast; None keeps what the files have.
    """

    headers: Headers
    raw_config: Mapping[str, Any]
    port: Port
    config: Any
    graphdef: nnx.GraphDef[VLM]
    layout: str
    targets: Mapping[str, Target]
    copies: tuple[str, ...]
    skipped: tuple[str, ...]
    dtype: np.dtype | None

    @property
    def nbytes(self) -> int:
        """Bytes of all parameters as kept."""
        return sum(target.nbytes for target in self.targets.values())

    def describe(self) -> str:
        """The plan as text, one line per parameter."""
        headers, kept = self.headers, self.dtype.name if self.dtype else "kept"
        counts = f"{len(headers.tensors)} tensors in {len(headers.files)} files"
        lines = [
            f"source   {headers.folder} ({counts}, {headers.nbytes / 1e9:.3f} GB)",
            f"port     {self.port.family}, layout {self.layout}",
            f"result   {len(self.targets)} parameters, {self.nbytes / 1e9:.3f} GB, dtype {kept}",
        ]
        for target in self.targets.values():
            rule = target.pieces[0].rule
            rows = f" {rule.where}" if rule.rows else ""
            lines.append(
                f"  {target.path} {list(target.shape)} {target.dtype.name} <- {rule.key}{rows}"
            )
        lines += [f"  (copy of a filled tensor, checked) {name}" for name in self.copies]
        lines += [f"  (no effect on the model) {name}" for name in self.skipped]
        return "\n".join(lines)

    def summary(self) -> dict[str, Any]:
        """The plan as a JSON object."""
        return {
            "source": str(self.headers.folder),
            "family": self.port.family,
            "layout": self.layout,
            "dtype": self.dtype.name if self.dtype else None,
            "source_tensors": len(self.headers.tensors),
            "source_bytes": self.headers.nbytes,
            "bytes": self.nbytes,
            "parameters": [
                {
                    "path": target.path,
                    "shape": list(target.shape),
                    "dtype": target.dtype.name,
                    "from": target.pieces[0].rule.key,
                    "rows": target.pieces[0].rule.rows,
                    "span": target.pieces[0].rule.span,
                    "groups": target.pieces[0].rule.groups,
                }
                for target in self.targets.values()
            ],
            "copies": list(self.copies),
            "skipped": list(self.skipped),
        }


def parse_dtype(name: str | None) -> np.dtype | None:
    """A dtype that parameters can be kept in, by name; None stays None."""
    if name is None or name in KEPT_DTYPES:
        return KEPT_DTYPES[name] if name else None
    raise UserError(f"dtype {name!r} is not supported; choose {', '.join(KEPT_DTYPES)}")


def plan_folder(folder: Path, *, dtype: str | None = None, port: Port | None = None) -> Plan:
    """Plan for a Hugging Face folder; reads config.json and headers only.

    Args:
        folder: with config.json and safetensors.
        dtype: float32, bfloat16 or float16; None keeps each parameter's dtype.
        port: overrides the port found by ``model_type``.
    """
    wanted = parse_dtype(dtype)
    if folder.is_file():
        raise UserError(f"{folder} is a file; give the folder that holds it and its config.json")
    headers = read_headers(folder)
    raw = read_json(folder / "config.json")
    if raw.get("quantization_config"):
        raise UserError(
            f"{folder}/config.json has a quantization_config; quantised weights cannot be "
            "converted. Take the original (bfloat16) checkpoint"
        )
    return build_plan(headers, raw, port or port_for(raw), wanted)


def settled_config(port: Port, raw: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The port's config for config.json and the names of the file's tensors."""
    config = port.read_config(raw)
    return port.settle(config, frozenset(names)) if port.settle else config


def build_plan(
    headers: Headers, raw: Mapping[str, Any], port: Port, dtype: np.dtype | None
) -> Plan:
    """Choose the layout that fits and check everything; see ``plan_folder``."""
    config = settled_config(port, raw, tuple(headers.tensors))
    graphdef, abstract = abstract_model(port, config, jnp.float32)
    shapes = {path: tuple(leaf.shape) for path, leaf in flatten(abstract).items()}
    inputs = linear_inputs(graphdef, abstract)
    layouts = port.layouts(config)
    for name, rules in layouts.items():
        table_faults(port.family, name, rules, shapes)
    matches = [
        match_layout(name, rules, headers.tensors, shapes, inputs)
        for name, rules in layouts.items()
    ]
    best = min(matches, key=lambda match: match.faults)
    if best.faults:
        raise UserError(offenders(headers.folder, port.family, best, matches))
    targets = {
        path: Target(path, shapes[path], _stored_dtype(best, path, dtype), best.pieces[path])
        for path in shapes
    }
    for name, param in best.copies.items():
        _check_copy(headers.tensors[name], targets[param].pieces[0].info)
    return Plan(
        headers=headers,
        raw_config=raw,
        port=port,
        config=config,
        graphdef=graphdef,
        layout=best.layout,
        targets=targets,
        copies=tuple(best.copies),
        skipped=best.skipped,
        dtype=dtype,
    )


def _stored_dtype(match: Match, path: str, wanted: np.dtype | None) -> np.dtype:
    """Dtype in which a parameter is kept: the file's, or the request."""
    allowed = _CASTABLE if wanted else set(KEPT_DTYPES.values())
    for piece in match.pieces[path]:
        info = piece.info
        if info.dtype in allowed:
            continue
        hint = (
            "pass --dtype to cast it to a dtype that JAX computes in"
            if info.dtype in _CASTABLE
            else "this is no plain floating-point weight (a quantised checkpoint?)"
        )
        raise UserError(
            f"{info.path}: tensor {info.name!r} has dtype {CODES[info.dtype]}, expected one of "
            f"{', '.join(CODES[d] for d in KEPT_DTYPES.values())}; {hint}"
        )
    return wanted or common_dtype({piece.info.dtype for piece in match.pieces[path]})


def _check_copy(copy: TensorInfo, original: TensorInfo, block: int = 1 << 26) -> None:
    """A tensor that the config declares a copy must be one, bit for bit."""
    same = copy.dtype == original.dtype and copy.shape == original.shape
    if same:
        width = max(copy.nbytes // copy.shape[0], 1)
        step = max(block // width, 1)
        for first in range(0, copy.shape[0], step):
            rows = slice(first, first + step)
            a, b = copy.read(rows), original.read(rows)
            if not np.array_equal(a.view(np.uint8), b.view(np.uint8)):
                same = False
                break
    if not same:
        raise UserError(
            f"config.json says that the output head is tied to the embeddings "
            f"(tie_word_embeddings), but {copy.name!r} of {copy.path.name} differs from "
            f"{original.name!r}. If the checkpoint has its own head, set tie_word_embeddings to "
            "false in config.json; if not, remove that tensor"
        )
