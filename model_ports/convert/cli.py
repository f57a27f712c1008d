"""``vrh-convert``, and the commands ``convert``, ``verify`` and ``export`` of ``vrh``.

Results go to standard output, progress and errors to standard error. Status: 0 done, 1 the
checkpoint differs from its source (``verify``), 2 bad input, 130 interrupted.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model_ports.errors import UserError


def add_convert(commands: Any) -> None:
    """Add ``convert`` to the subparsers of a command line."""
    text = "convert a published checkpoint (safetensors) to a sharded Orbax checkpoint"
    _convert_arguments(commands.add_parser("convert", help=text, description=text))


def add_verify(commands: Any) -> None:
    """Add ``verify``."""
    text = "compare a converted checkpoint with its source, bit by bit, and logits"
    command = commands.add_parser("verify", help=text, description=text)
    command.add_argument("converted", type=Path, help="folder that convert made")
    command.add_argument(
        "--source",
        help="folder or hub id (default: the recorded folder if it is still there, else checksums)",
    )
    command.add_argument("--no-logits", action="store_true", help="compare tensors only")
    _output_arguments(command)
    command.set_defaults(run=run_verify)


def add_export(commands: Any) -> None:
    """Add ``export``."""
    text = "write a converted checkpoint back as a Hugging Face folder"
    command = commands.add_parser("export", help=text, description=text)
    command.add_argument("converted", type=Path, help="folder that convert made")
    command.add_argument("out", type=Path, help="folder to make")
    command.add_argument("--layout", help="names of which on-disk layout (default: the source's)")
    command.add_argument(
        "--max-shard-size", default="5GB", metavar="SIZE", help="bytes per file (default: 5GB)"
    )
    _output_arguments(command)
    command.set_defaults(run=run_export)


def _convert_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "source",
        help="folder with config.json and safetensors, or a hub id (organisation/name), which is "
        "downloaded, or the study's name of a published checkpoint",
    )
    command.add_argument("out", type=Path, nargs="?", help="folder to make")
    command.add_argument("--revision", help="branch, tag or commit on the hub")
    command.add_argument(
        "--dtype", help="cast to float32, bfloat16 or float16 (default: keep each tensor's)"
    )
    command.add_argument(
        "--shards",
        type=int,
        default=8,
        metavar="N",
        help="tensor-parallel size that files are cut for; any other can be loaded, too "
        "(default: 8)",
    )
    command.add_argument("--overwrite", action="store_true", help="replace a conversion at OUT")
    command.add_argument(
        "--dry-run", action="store_true", help="check everything, print the plan, write nothing"
    )
    _output_arguments(command)
    command.set_defaults(run=run_convert)


def _output_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print one JSON document")
    command.add_argument("--quiet", action="store_true", help="no progress on standard error")


def run_convert(args: argparse.Namespace) -> int:
    """``convert``: plan, then write."""
    from model_ports.convert.plan import parse_dtype, plan_folder
    from model_ports.convert.save import save
    from model_ports.convert.source import is_converted, resolve, side_files

    if args.out is None and not args.dry_run:
        raise UserError("give the folder to make: convert SOURCE OUT (or --dry-run)")
    parse_dtype(args.dtype)
    folder = resolve(args.source, revision=args.revision)
    if is_converted(folder):
        raise UserError(
            f"{folder} is a converted checkpoint already; load it as it is, or export it first"
        )
    plan = plan_folder(folder, dtype=args.dtype)
    if not any(path.name.startswith("tokenizer") for path in side_files(folder)):
        print(f"note: {folder} has no tokenizer, which loading needs", file=sys.stderr)
    if args.dry_run:
        _print(args, plan.summary(), plan.describe())
        return 0
    report = save(plan, args.out, shards=args.shards, overwrite=args.overwrite, show=not args.quiet)
    speed = report.source_bytes / 1e6 / report.seconds
    resumed = f", {report.resumed} of them by an earlier run" if report.resumed else ""
    text = (
        f"{report.out}: {report.parameters} parameters{resumed}, {report.nbytes / 1e9:.3f} GB, "
        f"{report.seconds:.1f} s ({speed:.0f} MB/s)"
    )
    result = {
        **plan.summary(),
        "out": str(report.out),
        "resumed": report.resumed,
        "seconds": report.seconds,
    }
    _print(args, result, text)
    return 0


def run_verify(args: argparse.Namespace) -> int:
    """``verify``: status 1 if anything differs."""
    from model_ports.convert.source import resolve
    from model_ports.convert.verify import describe, verify_folder

    source = resolve(args.source) if args.source else None
    result = verify_folder(args.converted, source, logits=not args.no_logits, show=not args.quiet)
    _print(args, result, describe(result))
    return 0 if result["ok"] else 1


def run_export(args: argparse.Namespace) -> int:
    """``export``."""
    from model_ports.convert.export import export_folder, parse_size

    result = export_folder(
        args.converted,
        args.out,
        layout=args.layout,
        max_shard=parse_size(args.max_shard_size),
        show=not args.quiet,
    )
    text = (
        f"{result['out']}: {result['tensors']} tensors in {len(result['files'])} files, layout "
        f"{result['layout']}, {result['bytes'] / 1e9:.3f} GB"
    )
    if result["not_written"]:
        text += f"\nnot written, without effect on the model: {', '.join(result['not_written'])}"
    _print(args, result, text)
    return 0


def finish(status: int) -> int:
    """The status, once all output has been taken; a reader that has gone raises here."""
    sys.stdout.flush()
    return status


def closed_pipe() -> int:
    """Status for a reader that needs no more output, such as ``| head``; nothing is said."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141  # what a shell reports for SIGPIPE


def _print(args: argparse.Namespace, result: dict[str, Any], text: str) -> None:
    print(json.dumps(result, indent=2) if args.json else text)


def main(argv: Sequence[str] | None = None) -> int:
    """``vrh-convert SOURCE OUT``; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="vrh-convert",
        description="Convert a published checkpoint (safetensors) to a sharded Orbax checkpoint.",
    )
    _convert_arguments(parser)
    args = parser.parse_args(argv)
    try:
        return finish(int(args.run(args)))
    except UserError as error:
        print(f"vrh-convert: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return closed_pipe()
    except OSError as error:
        print(f"vrh-convert: {error}; check path, permissions and disk space", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nvrh-convert: interrupted; the same command continues", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
