"""Download a benchmark's files, verified and resumable, or say what to place where."""

import dataclasses
import fnmatch
import json
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from model_ports.errors import UserError
from vrh_jax.data.transfer import TIMEOUT, OfflineError, download, git_blob, online, sha256
from vrh_jax.strict import nearest

# What was fetched, of which revision, with which checksums; read again to resume.
RECORD = "download.json"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a benchmark is obtained; see downloads.yaml."""

    name: str
    licence: str
    repo: str
    patterns: tuple[str, ...]
    urls: tuple[dict[str, str], ...]
    manual: tuple[str, ...]
    option: str

    def placing(self, out: Path) -> list[str]:
        """Exactly which files to place where, as lines."""
        lines = []
        if self.repo:
            where = f"https://huggingface.co/datasets/{self.repo}"
            lines += [f"{p} of {where} as {out / p}" for p in self.patterns]
        lines += [f"{u['url']} as {out / u['file']}{_sum(u)}" for u in self.urls]
        lines += [" ".join(text.split()).replace("{out}", str(out)) for text in self.manual]
        return lines

    def usage(self, out: Path) -> str:
        """The options of the task that read it."""
        return self.option.replace("{out}", str(out))


def _sum(entry: dict[str, str]) -> str:
    return f" (sha256 {entry['sha256']})" if "sha256" in entry else ""


@cache
def recipes() -> dict[str, Recipe]:
    """All recipes by name."""
    raw = yaml.safe_load(Path(__file__).with_name("downloads.yaml").read_text())
    found = {}
    for name, entry in raw.items():
        hub = entry.get("hub", {})
        found[name] = Recipe(
            name=name,
            licence=entry["licence"],
            repo=hub.get("repo", ""),
            patterns=tuple(hub.get("files", ())),
            urls=tuple(entry.get("urls", ())),
            manual=tuple(entry.get("manual", ())),
            option=entry["option"],
        )
    return found


def recipe(name: str) -> Recipe:
    """The recipe of a benchmark.

    Raises:
        UserError: there is none of this name.
    """
    if name not in recipes():
        known = sorted(recipes())
        raise UserError(f"no benchmark {name!r} to get{nearest(name, known)} (known: {known})")
    return recipes()[name]


def get(
    name: str,
    out: Path,
    *,
    revision: str = "main",
    only: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Fetch what has a public address into ``out``; files that are there and whole are kept.

    Args:
        revision: branch or commit of the hub's repository. What was fetched is recorded, so a
            later call with the same branch continues with the same commit.
        only: glob patterns; the other files are left out.

    Returns:
        {"out", "commit", "files": {file: sha256}, "fetched": [...], "manual": [...], "option"}.

    Raises:
        UserError: a server cannot be reached (the message says which files to place where), or
            a file is not what its checksum says.
    """
    plan = recipe(name)
    record = _read_record(out)
    fetched: list[str] = []
    files: dict[str, str] = dict(record.get("files", {}))
    commit = ""
    try:
        if plan.repo:
            commit, listed = _listing(plan, _pinned(record, plan.repo, revision))
            for file in _chosen(listed, plan, only):
                files[file["name"]] = _fetch_hub(plan.repo, commit, file, out, fetched, say)
        for entry in plan.urls:
            if not only or _matches(entry["file"], only):
                files[entry["file"]] = _fetch_url(entry, out / entry["file"], fetched, say)
    except OfflineError as error:
        lines = "\n".join(f"  - {line}" for line in plan.placing(out))
        raise UserError(
            f"{name} cannot be downloaded here ({error}). On a machine with access run "
            f"`vrh data get {name}`, or place these files by hand:\n{lines}\n"
            f"Then use it with: {plan.usage(out)}"
        ) from None
    if files:
        done = {"name": name, "repo": plan.repo, "revision": revision, "commit": commit,
                "licence": plan.licence, "files": files}  # fmt: skip
        out.mkdir(parents=True, exist_ok=True)
        (out / RECORD).write_text(json.dumps(done, indent=2, sort_keys=True) + "\n")
    manual = [" ".join(m.split()).replace("{out}", str(out)) for m in plan.manual]
    return {
        "name": name,
        "out": str(out),
        "licence": plan.licence,
        "commit": commit,
        "files": files,
        "fetched": fetched,
        "manual": manual,
        "option": plan.usage(out),
    }


def _read_record(out: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((out / RECORD).read_text()))
    except (OSError, ValueError):
        return {}


def _pinned(record: dict[str, Any], repo: str, revision: str) -> str:
    """The commit of an earlier, perhaps unfinished call, so that files of two do not mix."""
    same = record.get("repo") == repo and record.get("revision") == revision
    return str(record["commit"]) if same and record.get("commit") else revision


def _listing(plan: Recipe, revision: str) -> tuple[str, list[dict[str, Any]]]:
    """(commit, files with name, size, sha256 or git's blob id) of the repository."""
    from huggingface_hub import HfApi

    info = online(
        lambda: HfApi().dataset_info(
            plan.repo, revision=revision, files_metadata=True, timeout=TIMEOUT
        ),
        plan.repo,
    )
    listed = [
        {
            "name": s.rfilename,
            "size": s.size,
            "sha256": s.lfs.sha256 if s.lfs else None,
            "blob": s.blob_id,
        }
        for s in info.siblings or ()
    ]
    return str(info.sha), listed


def _chosen(
    listed: list[dict[str, Any]], plan: Recipe, only: Sequence[str]
) -> list[dict[str, Any]]:
    """The files that the recipe names, restricted to ``only``."""
    found = {f["name"]: f for f in listed if _matches(f["name"], plan.patterns)}
    if not found:
        raise UserError(
            f"{plan.repo} has none of {', '.join(plan.patterns)} any more; it has "
            f"{sorted(f['name'] for f in listed)[:20]}. Name an older commit with --revision"
        )
    return [f for name, f in sorted(found.items()) if not only or _matches(name, only)]


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _fetch_hub(
    repo: str,
    commit: str,
    file: dict[str, Any],
    out: Path,
    fetched: list[str],
    say: Callable[[str], None],
) -> str:
    """Make sure that a file of the hub is there and whole; its sha256."""
    from huggingface_hub import hf_hub_download

    target = out / file["name"]
    if not _whole(target, file):
        say(f"{file['name']} ({(file['size'] or 0) / 1e6:.1f} MB)")
        online(
            lambda: hf_hub_download(
                repo, file["name"], repo_type="dataset", revision=commit, local_dir=out
            ),
            repo,
        )
        fetched.append(file["name"])
        if not _whole(target, file):
            target.unlink(missing_ok=True)
            raise UserError(
                f"{target}: the download does not have the checksum that {repo} states; it was "
                "removed. Run the command again"
            )
    return sha256(target)


def _whole(path: Path, file: dict[str, Any]) -> bool:
    """Whether a local file is the one that the hub lists."""
    if not path.is_file() or (file["size"] is not None and path.stat().st_size != file["size"]):
        return False
    if file["sha256"]:
        return sha256(path) == file["sha256"]
    return file["blob"] is None or git_blob(path) == file["blob"]


def _fetch_url(
    entry: dict[str, str], target: Path, fetched: list[str], say: Callable[[str], None]
) -> str:
    """Make sure that a file of a plain address is there and whole; its sha256."""
    expected = entry.get("sha256")
    if target.is_file() and (expected is None or sha256(target) == expected):
        return sha256(target)
    if os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0"):
        raise OfflineError(f"{entry['url']}: HF_HUB_OFFLINE is set")
    say(entry["url"])
    part = target.with_name(target.name + ".part")
    download(entry["url"], part)
    digest = sha256(part)
    if expected is not None and digest != expected:
        part.unlink()
        raise UserError(
            f"{entry['url']} has sha256 {digest}, expected {expected}; it was not kept. If its "
            "owner published another version, check that and place it by hand"
        )
    part.replace(target)
    fetched.append(entry["file"])
    return digest
