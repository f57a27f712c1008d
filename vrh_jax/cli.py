"""The command ``vrh``. What is slow to import is imported by the command that needs it."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model_ports.convert.cli import add_convert, add_export, add_verify, closed_pipe, finish
from model_ports.errors import UserError
from vrh_jax.bench.cli import add_bench
from vrh_jax.data.cli import add_data
from vrh_jax.organisms.cli import add_organism

# Exit statuses: bad input; stopped by SIGTERM (preempted) or Ctrl-C, to be run again.
BAD_INPUT, PREEMPTED, CANCELLED = 2, 42, 130


def build_parser() -> argparse.ArgumentParser:
    """All commands; each sets ``run`` to its function."""
    parser = argparse.ArgumentParser(
        prog="vrh", description="Find, mask and transfer visual retrieval heads."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_study(commands)
    add_plan(commands)
    add_report(commands)
    add_convert(commands)
    add_verify(commands)
    add_export(commands)
    add_models(commands)
    add_data(commands)
    add_bench(commands)
    add_organism(commands)
    return parser


def add_study(commands: Any) -> None:
    """Add ``study``, ``score``, ``evaluate`` and ``transfer``."""
    for name, until, text in (
        ("study", "report", "run a whole study: score, mask, compare, transfer, report"),
        ("score", "score", "answer the detection samples and score and rank the heads"),
        ("evaluate", "evaluate", "score, then answer under every head mask; no report"),
        ("transfer", "score", "score, then compare the heads of the study's pairs of models"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        _add_config(command)
        group = command.add_argument_group("several processes")
        group.add_argument(
            "--distributed", action="store_true", help="join the other processes of this run"
        )
        group.add_argument("--coordinator", metavar="HOST:PORT", help="found by itself on TPU")
        group.add_argument("--processes", type=int, help="number of processes")
        group.add_argument("--process-id", type=int, help="index of this one")
        command.set_defaults(run=run_study, until=until)


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument("config", type=Path, help="the study's YAML file")
    command.add_argument("--out", type=Path, help="folder of the results")
    command.add_argument("--json", action="store_true", help="print one JSON document")


def add_plan(commands: Any) -> None:
    """Add ``plan``."""
    text = "print what a study would do, after all its checks; loads no weights"
    command = commands.add_parser("plan", help=text, description=text)
    _add_config(command)
    command.set_defaults(run=run_plan)


def add_report(commands: Any) -> None:
    """Add ``report``."""
    text = "compute the numbers, figures and report.html of a folder of results again"
    command = commands.add_parser("report", help=text, description=text)
    command.add_argument("out", type=Path, help="folder of the results")
    command.add_argument("--json", action="store_true", help="print one JSON document")
    command.set_defaults(run=run_report)


def add_models(commands: Any) -> None:
    """Add ``models``."""
    text = "list the models that are ported"
    command = commands.add_parser("models", help=text, description=text)
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON document, a list")
    form.add_argument("--markdown", action="store_true", help="print the README's table")
    command.set_defaults(run=run_models)


def run_study(args: argparse.Namespace) -> int:
    """``vrh study``, ``score``, ``evaluate`` and ``transfer``."""
    from vrh_jax.config import load_config

    config = load_config(args.config, out=args.out)
    from vrh_jax.engine.distributed import Coordinator, initialise, is_main
    from vrh_jax.engine.runner import Interrupted
    from vrh_jax.study import console
    from vrh_jax.study.run import run_study as run

    if args.command == "transfer" and not config.transfer.pairs:
        raise UserError(f"{args.config}: transfer.pairs is empty, so there is nothing to compare")
    if args.distributed:
        initialise(Coordinator(args.coordinator, args.processes, args.process_id))
    try:
        outcome = run(config, until=args.until)
    except Interrupted as stop:
        print(
            f"vrh: stopped ({stop}); what is done is saved in {config.folder}. Run the same "
            "command to continue",
            file=sys.stderr,
        )
        return PREEMPTED if str(stop) == "SIGTERM" else CANCELLED
    if is_main():
        console.show_outcome(outcome, args.command, as_json=args.json)
    return 0


def run_plan(args: argparse.Namespace) -> int:
    """``vrh plan``."""
    from vrh_jax.config import load_config

    config = load_config(args.config, out=args.out)
    from vrh_jax.study import console
    from vrh_jax.study.models import Checkpoints
    from vrh_jax.study.plan import make_plan

    console.show_plan(make_plan(config, Checkpoints()).describe(), as_json=args.json)
    return 0


def run_report(args: argparse.Namespace) -> int:
    """``vrh report``."""
    from vrh_jax.study import console
    from vrh_jax.study.layout import Layout
    from vrh_jax.study.summary import write_results

    summary = write_results(Layout(args.out))
    console.show_summary(summary, args.out, as_json=args.json)
    return 0


def run_models(args: argparse.Namespace) -> int:
    """``vrh models``."""
    from vrh_jax.study import console

    console.show_models(as_json=args.json, as_markdown=args.markdown)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``vrh``; returns the exit status."""
    # Threads of the tokenizers library and the threads that prepare prompts do not mix.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    args = build_parser().parse_args(argv)
    try:
        return finish(int(args.run(args)))
    except UserError as error:
        print(f"vrh: error: {error}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:
        return closed_pipe()
    except OSError as error:
        print(f"vrh: error: {error}; check path, permissions and disk space", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("vrh: cancelled", file=sys.stderr)
        return CANCELLED


if __name__ == "__main__":
    sys.exit(main())
