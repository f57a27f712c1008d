"""Moving files from servers, whole or not at all, and telling a network's failure from a disk's."""

import errno
import hashlib
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from model_ports.errors import UserError

_CHUNK = 1 << 20
TIMEOUT = 60.0
# The disk is full or may not be written.
_DISK = (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT)


class OfflineError(Exception):
    """A server that cannot be reached."""


def online(call: Callable[[], Any], where: str) -> Any:
    """The call's result; failures of the network become ``OfflineError``."""
    from huggingface_hub import errors

    try:
        return call()
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise UserError(f"the hub has no such dataset or revision: {where} ({error})") from None
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as error:
        raise OfflineError(f"{where}: {_first_line(error)}") from None
    except Exception as error:
        # httpx, requests and urllib3 all have their own kinds; only those of the network.
        names = {c.__name__ for c in type(error).__mro__}
        if isinstance(error, OSError) or names & {"TransportError", "HTTPError"}:
            raise _network(error, where) from None
        raise


def _network(error: Exception, where: str) -> OfflineError | UserError:
    """A failure of the network, or of the local disk."""
    if isinstance(error, OSError) and error.errno in _DISK:
        return UserError(f"{where}: {_first_line(error)}")
    return OfflineError(f"{where}: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def download(url: str, part: Path) -> None:
    """Append to ``part`` what is missing of it; start again if the server cannot continue.

    Raises:
        OfflineError: the server cannot be reached, does not have it, or stopped early.
        UserError: the disk is full or may not be written.
    """
    have = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(url)  # noqa: S310 - addresses come from downloads.yaml
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:  # noqa: S310
            partial = response.status == 206
            wanted = int(response.headers.get("Content-Length") or 0)
            part.parent.mkdir(parents=True, exist_ok=True)
            with part.open("ab" if partial else "wb") as file:
                while chunk := response.read(_CHUNK):
                    file.write(chunk)
                    wanted -= len(chunk)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing is missing; the checksum decides
            return
        raise OfflineError(f"{url}: {error}") from None
    except OSError as error:
        raise _network(error, url) from None
    if wanted > 0:
        raise OfflineError(f"{url}: the connection ended early; run again to continue")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def git_blob(path: Path) -> str:
    """Git's id of a small file, which is what the hub states for files outside LFS."""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
