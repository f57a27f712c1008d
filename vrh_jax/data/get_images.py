"""Download the COCO images that a benchmark's annotations name, and no others.

RefCOCO's val split needs 1,500 of the 82,783 images of train2014.zip (13.5 GB).
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from model_ports.errors import UserError
from model_ports.images.decode import load_image
from vrh_jax.data.images import FileImage
from vrh_jax.data.sample import Sample
from vrh_jax.data.transfer import OfflineError, download
from vrh_jax.engine.batching import prefetch

ADDRESS = "http://images.cocodataset.org"
# An annotated name without a year may be of either set of 2017.
_NAMES = ("train2017/{0}.jpg", "val2017/{0}.jpg", "train2014/COCO_train2014_{0}.jpg",
          "val2014/COCO_val2014_{0}.jpg")  # fmt: skip
_COCO = re.compile(r"(?:COCO_(train|val)2014_)?(\d{12})\.jpg")
_FEW = 5


def missing(samples: Iterable[Sample]) -> list[Sample]:
    """One sample per image file that is not there."""
    found: dict[Path, Sample] = {}
    for sample in samples:
        if isinstance(sample.image, FileImage) and not sample.image.path.exists():
            found.setdefault(sample.image.path, sample)
    return list(found.values())


def addresses(name: str) -> list[str]:
    """Where COCO publishes an image, the likeliest first; none if it is not one of COCO's."""
    match = _COCO.fullmatch(name)
    if match is None:
        return []
    paths = [form.format(match[2]) for form in _NAMES]
    if match[1]:
        paths = [p for p in paths if p.startswith(f"{match[1]}2014/")]
    return [f"{ADDRESS}/{path}" for path in paths]


def fetch(samples: Iterable[Sample], *, workers: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Download every missing image to where its annotation is looked for.

    Returns:
        {"fetched": count, "failed": {file: reason}}. An image that is not of its annotated size
        is not kept.

    Raises:
        UserError: the first few downloads all fail because the server cannot be reached.
    """
    wanted = missing(samples)
    say(f"{len(wanted)} images are missing")
    failed: dict[str, str] = {}
    for number, (file, reason) in enumerate(prefetch(wanted, _fetch, workers), start=1):
        if reason:
            failed[file] = reason
        unreachable = reason.startswith(ADDRESS) and "HTTP Error" not in reason
        if unreachable and len(failed) == number == min(_FEW, len(wanted)):
            raise UserError(
                f"images cannot be downloaded here ({reason}). Place them as {file} and so on, "
                f"from {ADDRESS}/zips/train2014.zip"
            )
        if number % 100 == 0:
            say(f"{number} of {len(wanted)}")
    return {"fetched": len(wanted) - len(failed), "failed": failed}


def _fetch(sample: Sample) -> tuple[str, str]:
    """(file, why it could not be fetched or "")."""
    if not isinstance(sample.image, FileImage):
        raise TypeError(f"{sample.id}: not an image file")
    target = sample.image.path
    reason = "no image of COCO, so its address is not known"
    for number, address in enumerate(addresses(target.name)):
        # Not one for all addresses: an unfinished file is continued.
        part = target.with_name(f"{target.name}.{number}.part")
        try:
            download(address, part)
            size = load_image(part).size
        except OfflineError as error:
            reason = str(error)
            continue
        except UserError as error:
            part.unlink()
            reason = str(error)
            continue
        if sample.image_size not in ((0, 0), size):
            part.unlink()
            reason = f"{address} is {size}, annotated {sample.image_size}"
            continue
        part.replace(target)
        return str(target), ""
    return str(target), reason
