"""Streaming conversion of a Hugging Face folder to an Orbax checkpoint with stacked layers.

Memory: parameters are written piece by piece (``model_ports.convert.write``); the peak is at most
twice the largest source tensor plus 1 GiB, whatever the size of a stacked parameter.

Safety: all work happens in ``OUT.partial``, which is renamed at the end, so a folder named OUT
is always complete. A killed conversion continues where it stopped, parameter by parameter,
after checking by SHA-256 that the source is still the same.

Processes: this is host work by one process; it needs no accelerator and starts none. On a
slice, run it on one host against shared storage (or before the job); a second process that
converts to the same OUT is refused by a lock. Loading, in contrast, is done by all processes
(``model_ports.convert.load``).
"""

import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from model_ports.convert.checksums import Checksums, checksums
from model_ports.convert.headers import fsync
from model_ports.convert.manifest import write_manifest
from model_ports.convert.pieces import RangeError
from model_ports.convert.plan import Plan
from model_ports.convert.progress import Progress
from model_ports.convert.source import MANIFEST, PARAMS, PARTIAL, is_converted, side_files
from model_ports.convert.store import write_orbax_metadata
from model_ports.convert.write import write_target
from model_ports.errors import UserError

PROGRESS = "progress.json"
_REPLACED = ".replaced"

# Parameter path -> {tensor name: SHA-256 of what was stored, or None if not cast}.
Done = dict[str, dict[str, str | None]]


@dataclasses.dataclass(frozen=True)
class Report:
    """What a conversion did.

    Attributes:
        resumed: parameters that an earlier, interrupted run had finished.
        seconds: wall time of the conversion including the source check.
    """

    out: Path
    parameters: int
    resumed: int
    nbytes: int
    source_bytes: int
    seconds: float


def save(
    plan: Plan, out: Path, *, shards: int = 8, overwrite: bool = False, show: bool = False
) -> Report:
    """Write a converted folder: parameters, config, tokenizer, templates and manifest.

    Args:
        plan: of ``plan_folder``; everything about the source has been checked.
        out: the folder to make; parents are made, too.
        shards: tensor-parallel size that chunks are cut for (a restore into any other sharding
            works, it only reads some chunks more than once).
        overwrite: replace a finished or unfinished conversion at ``out``.
        show: progress on standard error.

    Raises:
        UserError: ``out`` is in the way, too little disk space, or an unfinished conversion of
            another source.
    """
    started = time.monotonic()
    if shards < 1:
        raise UserError(f"shards = {shards}; expected the tensor-parallel size, 1 or more")
    partial = out.with_name(out.name + PARTIAL)
    _check_out(plan, out, partial, overwrite=overwrite)
    partial.mkdir(parents=True, exist_ok=True)
    with _locked(partial):
        sums = checksums(plan.headers, show=show)
        identity = _identity(plan, sums, shards)
        done = _read_progress(partial, identity, overwrite=overwrite)
        resumed = len(done)
        _check_space(partial, sum(t.nbytes for p, t in plan.targets.items() if p not in done))
        try:
            _write_targets(plan, partial, identity, done, shards, show=show)
        except RangeError:
            shutil.rmtree(partial)  # of no use for another dtype
            raise
        _finish(plan, partial, sums, done, shards)
        _publish(partial, out)
    return Report(
        out=out,
        parameters=len(plan.targets),
        resumed=resumed,
        nbytes=plan.nbytes,
        source_bytes=plan.headers.nbytes,
        seconds=time.monotonic() - started,
    )


def _check_out(plan: Plan, out: Path, partial: Path, *, overwrite: bool) -> None:
    source = plan.headers.folder.resolve()
    if out.name.endswith(PARTIAL) or out.name in ("", "..", "."):
        raise UserError(f"{out} cannot be the name of a converted folder; choose another")
    if source in (out.resolve(), partial.resolve()) or out.resolve() in source.parents:
        raise UserError(f"{out} is the source folder or holds it; choose another folder")
    if out.exists() or out.is_symlink():
        if not overwrite:
            raise UserError(f"{out} exists; choose another folder, or pass --overwrite")
        if not is_converted(out):
            raise UserError(
                f"{out} exists and is not a converted checkpoint, so --overwrite does not touch "
                "it; choose another folder or remove it yourself"
            )
    leftover = sorted(p.name for p in partial.iterdir()) if partial.is_dir() else []
    if leftover and PROGRESS not in leftover:
        raise UserError(
            f"{partial} is in the way and is no unfinished conversion (no {PROGRESS}); remove it "
            "or choose another folder"
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder; it ends with the process, however that ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"{folder}: another process is converting to this folder right now; wait for it"
            ) from error
        yield
    finally:
        os.close(handle)


def _identity(plan: Plan, sums: Checksums, shards: int) -> dict[str, Any]:
    """What must be equal for an unfinished conversion to be continued."""
    config = json.dumps(plan.raw_config, sort_keys=True).encode()
    return {
        "files": dict(sums.files),
        "config": hashlib.sha256(config).hexdigest(),
        "family": plan.port.family,
        "layout": plan.layout,
        "dtype": plan.dtype.name if plan.dtype else None,
        "shards": shards,
        "parameters": {
            path: [list(target.shape), target.dtype.name] for path, target in plan.targets.items()
        },
    }


def _read_progress(partial: Path, identity: Mapping[str, Any], *, overwrite: bool) -> Done:
    """Finished parameters of an interrupted run, if it had the same source and settings."""
    path = partial / PROGRESS
    if not path.exists():
        return {}
    try:
        state = json.loads(path.read_text())
        before, done = dict(state["identity"]), dict(state["done"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); remove {partial}") from error
    differs = sorted(key for key in identity if before.get(key) != identity[key])
    if not differs:
        return done
    if not overwrite:
        raise UserError(
            f"{partial} holds an unfinished conversion of another source or with other settings "
            f"(different: {', '.join(differs)}). Finish that one with its own source and "
            f"options, remove {partial}, or pass --overwrite"
        )
    # The progress file goes first to the new state, so that a kill here leaves a clear one.
    _write_progress(partial, identity, {})
    for child in partial.iterdir():
        if child.is_dir():
            shutil.rmtree(child)
        elif child.name != PROGRESS:
            child.unlink()
    return {}


def _check_space(folder: Path, nbytes: int) -> None:
    needed, free = int(nbytes * 1.01) + (64 << 20), shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{folder.parent} has {free / 1e9:.2f} GB free, the conversion needs "
            f"{needed / 1e9:.2f} GB; free some space or choose a folder on another disk"
        )


def _write_targets(
    plan: Plan,
    partial: Path,
    identity: Mapping[str, Any],
    done: Done,
    shards: int,
    *,
    show: bool,
) -> None:
    progress = Progress(
        "converting", len(plan.targets), plan.nbytes, item="parameters", enabled=show
    )
    _write_progress(partial, identity, done)
    for path, target in plan.targets.items():
        if path in done:
            progress.skip(1, target.nbytes)
            continue
        done[path] = write_target(partial / PARAMS, target, shards, progress)
        _write_progress(partial, identity, done)
        progress.add(1, 0)
    progress.finish()


def _write_progress(partial: Path, identity: Mapping[str, Any], done: Done) -> None:
    text = json.dumps({"identity": identity, "done": done})
    temporary = partial / (PROGRESS + ".new")
    temporary.write_text(text)
    temporary.replace(partial / PROGRESS)


def _finish(plan: Plan, partial: Path, sums: Checksums, done: Done, shards: int) -> None:
    """Everything but the arrays; the manifest, which makes the folder loadable, comes last."""
    folder = plan.headers.folder
    stored = {path: (target.shape, target.dtype) for path, target in plan.targets.items()}
    write_orbax_metadata(partial / PARAMS, stored)
    copied = [folder / "config.json", *side_files(folder)]
    for path in copied:
        shutil.copyfile(path, partial / path.name)
    write_manifest(partial / MANIFEST, plan, sums, done, copied, shards)
    for path in (*partial.iterdir(), partial / PARAMS, partial):
        fsync(path)


def _publish(partial: Path, out: Path) -> None:
    """Rename; an old conversion at ``out`` is moved aside first and removed afterwards."""
    old = out.with_name(out.name + _REPLACED)
    if out.exists():
        _remove(old)
        out.rename(old)
    partial.rename(out)
    fsync(out.parent)
    (out / PROGRESS).unlink(missing_ok=True)
    _remove(old)


def _remove(converted: Path) -> None:
    """Remove a converted folder so that what a kill leaves of it does not look complete."""
    (converted / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(converted, ignore_errors=True)
