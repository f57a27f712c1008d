"""``vrh organism``: reproduce the tiny VLMs that ship with the package."""

import argparse
import json
from pathlib import Path
from typing import Any


def add_organism(subparsers: Any) -> None:
    """Add the ``organism`` command (``run`` is set to its function)."""
    parser = subparsers.add_parser(
        "organism", help="train the tiny VLMs that ship with the package"
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    train = actions.add_parser(
        "train",
        help="train backbones and VLMs from a configuration",
        description="Train the organisms: symbolic backbones, vision towers, alignment, tuning. "
        "The same configuration gives the same weights on the same kind of processor, however many "
        "cores it has; an interrupted run continues where it stopped. Each model takes about an "
        "hour.",
    )
    train.add_argument("config", type=Path, help="e.g. configs/organism_train.yaml")
    train.add_argument("--out", type=Path, default=Path("results/organism_train"))
    train.add_argument("--models", nargs="+", default=[], help="only these models")
    train.add_argument("--json", action="store_true", help="print one JSON document at the end")
    train.set_defaults(run=run_train)


def run_train(args: argparse.Namespace) -> int:
    """``vrh organism train CONFIG``; exit status 0."""
    from vrh_jax.organisms.record import use_one_thread
    from vrh_jax.organisms.train import train

    use_one_thread()

    def quiet(_: str) -> None:
        """Only the JSON document goes to standard output."""

    folders = train(args.config, args.out, models=args.models, show=quiet if args.json else print)
    if args.json:
        print(json.dumps({"out": str(args.out), "models": [str(f) for f in folders]}))
    return 0
