"""SHA-256 of source files and of each tensor in them, in one pass over the bytes."""

import dataclasses
import hashlib
from collections.abc import Mapping

from model_ports.convert.headers import Headers
from model_ports.convert.progress import Progress

_BLOCK = 8 << 20


@dataclasses.dataclass(frozen=True)
class Checksums:
    """Hex digests by file name and by tensor name."""

    files: Mapping[str, str]
    tensors: Mapping[str, str]


def checksums(headers: Headers, *, show: bool = False) -> Checksums:
    """Read every source file once."""
    progress = Progress("checking source", len(headers.tensors), headers.nbytes, enabled=show)
    files: dict[str, str] = {}
    tensors: dict[str, str] = {}
    for path in headers.files:
        infos = sorted(
            (t for t in headers.tensors.values() if t.path == path), key=lambda t: t.start
        )
        whole = hashlib.sha256()
        buffer = memoryview(bytearray(_BLOCK))
        with path.open("rb", buffering=0) as file:
            # The tensors follow the header without gaps (checked when it was read).
            base = infos[0].start if infos else path.stat().st_size
            for name, size in [("", base), *((t.name, t.nbytes) for t in infos)]:
                own = hashlib.sha256()
                left = size
                while left > 0 and (count := file.readinto(buffer[: min(left, _BLOCK)])):
                    whole.update(buffer[:count])
                    own.update(buffer[:count])
                    left -= count
                if name:
                    tensors[name] = own.hexdigest()
                    progress.add(1, headers.tensors[name].nbytes)
        files[path.name] = whole.hexdigest()
    progress.finish()
    return Checksums(files, tensors)
