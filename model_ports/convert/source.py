"""Where a checkpoint comes from: a local folder, a converted folder or a hub id."""

import re
from pathlib import Path

from model_ports.errors import UserError

MANIFEST = "manifest.json"
PARAMS = "params"
PARTIAL = ".partial"

# Files of a checkpoint that go along with its weights, besides config.json.
SIDE_FILES = (
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.json",
    "chat_template.jinja",
    "conversation_template.json",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    "NOTICE",
    "NOTICE.txt",
)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def side_files(folder: Path) -> list[Path]:
    """Tokenizer, template, processor and licence files of a checkpoint folder, sorted."""
    return [folder / name for name in sorted(SIDE_FILES) if (folder / name).is_file()]


def is_converted(folder: Path) -> bool:
    """Whether a folder is a finished conversion."""
    return (folder / MANIFEST).is_file() and (folder / PARAMS).is_dir()


def resolve(source: str | Path, *, revision: str | None = None) -> Path:
    """Local folder of a checkpoint; downloads only if ``source`` is a hub id or study name.

    Args:
        source: a local folder, ``organisation/name`` on the Hugging Face hub, or the study's
            name of a published checkpoint.
        revision: branch, tag or commit on the hub.

    Raises:
        UserError: no such folder; unfinished conversion; download not possible.
    """
    path = Path(source).expanduser()
    if path.exists():
        if path.name.endswith(PARTIAL):
            raise UserError(
                f"{path} is an unfinished conversion; run the same `vrh convert` again to finish "
                "it, and use the folder without the suffix"
            )
        return path
    text = str(source)
    if "://" in text:
        raise UserError(
            f"{text}: only local folders and hub ids are read; copy it (gsutil -m cp -r) or mount "
            "it (gcsfuse) first"
        )
    hub_id = _study_names().get(text, text)
    if not _HUB_ID.fullmatch(hub_id):
        raise UserError(
            f"{text}: no such folder, and no hub id (organisation/name). Known names: "
            f"{', '.join(sorted(_study_names()))}"
        )
    return _download(hub_id, revision)


def _study_names() -> dict[str, str]:
    """The study's model names -> first hub id."""
    from model_ports.registry import ports

    return {name: ids[0] for port in ports() for name, ids in port.names.items()}


def _download(hub_id: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    wanted = ["config.json", "*.safetensors", "*.safetensors.index.json", *SIDE_FILES]
    try:
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=wanted))
    except (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        OSError,
    ) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"{hub_id}: there is no such local folder, and it cannot be fetched from the Hugging "
            f"Face hub: {reason}. Check the spelling, the network (HF_HUB_OFFLINE), the licence "
            "of gated checkpoints (`hf auth login`), or give a local folder"
        ) from error
