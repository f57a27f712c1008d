"""The command ``vrh``. Modules that are slow to import are imported by the commands."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model_ports.errors import UserError

# Exit statuses: 2 bad input; 42 stopped by SIGTERM (preempted) and 130 by Ctrl-C, run again.
BAD_INPUT, PREEMPTED, CANCELLED = 2, 42, 130


def build_parser() -> argparse.ArgumentParser:
    """All commands; each sets ``run`` to its function."""
    parser = argparse.ArgumentParser(
        prog="vrh", description="Find, mask and transfer visual retrieval heads."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_study(commands)
    return parser


def _add_study(commands: Any) -> None:
    for name, until, text in (
        ("study", "report", "run a whole study: score, mask, compare, transfer, report"),
        ("score", "score", "only answer and score heads on the detection samples"),
        ("evaluate", "evaluate", "score, then answer under every head mask, without a report"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("config", type=Path, help="the study's YAML file")
        command.add_argument("--out", type=Path, help="folder of the results")
        command.add_argument("--json", action="store_true", help="print one JSON document")
        _add_cluster(command)
        command.set_defaults(run=_run_study, until=until)


def _add_cluster(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("several processes")
    group.add_argument(
        "--distributed", action="store_true", help="join the other processes of this run"
    )
    group.add_argument("--coordinator", metavar="HOST:PORT", help="found by itself on TPU")
    group.add_argument("--processes", type=int, help="number of processes")
    group.add_argument("--process-id", type=int, help="index of this one")


def _run_study(args: argparse.Namespace) -> int:
    from vrh_jax.config import load_config

    config = load_config(args.config, out=args.out)
    from vrh_jax.engine.distributed import Coordinator, initialise
    from vrh_jax.engine.runner import Interrupted
    from vrh_jax.study.run import run_study

    if args.distributed:
        initialise(Coordinator(args.coordinator, args.processes, args.process_id))
    try:
        outcome = run_study(config, until=args.until)
    except Interrupted as stop:
        print(
            f"vrh: stopped ({stop}); what is done is saved in {config.folder}. Run the same "
            "command to continue",
            file=sys.stderr,
        )
        return PREEMPTED if str(stop) == "SIGTERM" else CANCELLED
    if args.json:
        print(
            json.dumps(
                {"out": str(outcome.out), "worked": outcome.worked, "summary": outcome.summary}
            )
        )
        return 0
    if not outcome.worked:
        print(f"{outcome.out}: this study is finished; nothing to do")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``vrh``; returns the exit status."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    args = build_parser().parse_args(argv)
    try:
        return int(args.run(args))
    except UserError as error:
        print(f"vrh: error: {error}", file=sys.stderr)
        return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
