"""What the project says about itself is true: dependencies, packaged files, README, layers."""

import ast
import functools
import importlib.util
import itertools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("model_ports", "vrh_jax")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Imported only by commands that need them, with a message that says how to install them.
OPTIONAL = {"gguf", "tensorflow-datasets", "torch"}


def name_of(requirement: str) -> str:
    return re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0].lower().replace("_", "-")


@functools.cache
def sources() -> dict[Path, ast.Module]:
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    return {file: ast.parse(file.read_text()) for file in files}


def imports(tree: ast.AST, *, top_level: bool = False) -> Iterator[str]:
    """Imported modules; with ``top_level`` only those that importing the file imports."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif not (top_level and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            yield from imports(node, top_level=top_level)


def third_party() -> dict[str, set[str]]:
    """Distribution -> files that import it."""
    distributions = packages_distributions()
    found: dict[str, set[str]] = {}
    for file, tree in sources().items():
        for module in imports(tree):
            top = module.split(".")[0]
            if top in sys.stdlib_module_names or top in PACKAGES:
                continue
            for name in set(distributions.get(top, [top])):
                found.setdefault(name.lower().replace("_", "-"), set()).add(file.name)
    return found


def test_every_import_is_a_declared_dependency() -> None:
    declared = {name_of(requirement) for requirement in PROJECT["dependencies"]}
    missing = {
        name: files
        for name, files in third_party().items()
        # jaxlib is part of jax.
        if name not in declared | OPTIONAL | {"jaxlib"}
    }
    assert not missing


def test_every_dependency_is_used() -> None:
    used = set(third_party())
    # xarray finds its file format by name, and that its reader.
    indirect = {"h5netcdf", "h5py"}
    unused = {name_of(r) for r in PROJECT["dependencies"]} - used - indirect
    assert not unused


def test_every_dependency_has_a_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    block = text[text.index("dependencies = [") : text.index("[project.optional-dependencies]")]
    lines = [line.strip() for line in block.splitlines()]
    for before, line in itertools.pairwise(lines):
        if line.startswith('"'):
            assert "#" in line or before.startswith("#"), line


def test_torch_is_never_imported_with_a_module() -> None:
    for file, tree in sources().items():
        tops = {module.split(".")[0] for module in imports(tree, top_level=True)}
        assert not tops & {"torch", "tensorflow", "gguf"}, file


def test_the_models_do_not_import_the_study() -> None:
    for file, tree in sources().items():
        if file.relative_to(ROOT).parts[0] == "model_ports":
            assert not [m for m in imports(tree) if m.split(".")[0] == "vrh_jax"], file


@pytest.mark.parametrize("command", PROJECT["scripts"])
def test_console_scripts_exist(command: str) -> None:
    module, function = PROJECT["scripts"][command].split(":")
    assert callable(getattr(importlib.import_module(module), function))


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return [Path(line) for line in listed.stdout.splitlines()]


def test_data_files_of_the_packages_are_packaged() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    for package in PACKAGES:
        covered = {
            path.relative_to(ROOT)
            for pattern in settings["package-data"][package]
            for path in (ROOT / package).glob(pattern)
        }
        data = [path for path in tracked(package) if path.suffix != ".py"]
        assert not [path for path in data if path not in covered]


def fenced(text: str) -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


def test_the_first_screen_of_the_readme_has_the_two_commands() -> None:
    screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:30])
    start = "python3 -m venv .venv && . .venv/bin/activate && "
    assert f"{start}pip install -e . && vrh study configs/organism.yaml" in fenced(screen)
    assert f"{start}pip install -e '.[test]' && pytest" in fenced(screen)


def documents() -> list[Path]:
    return [ROOT / path for path in tracked("*.md")] or [ROOT / "README.md"]


def test_files_named_in_the_documents_exist() -> None:
    for document in documents():
        text = document.read_text()
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (document.parent / target).exists(), f"{document}: {target}"
        for config in re.findall(r"\bconfigs/[a-z0-9_]+\.yaml", text):
            assert (ROOT / config).exists(), f"{document}: {config}"


def test_commands_named_in_the_documents_exist() -> None:
    from vrh_jax.cli import build_parser

    choices = build_parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    for document in documents():
        for line in fenced(document.read_text()):
            for command in re.findall(r"\bvrh ([a-z-]+)", line):
                assert command in choices, f"{document}: vrh {command}"


def test_the_page_of_settings_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("settings", ROOT / "docs" / "make_settings.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    expected = "\n".join(module.page()) + "\n"
    assert (ROOT / "docs" / "settings.md").read_text() == expected, "run docs/make_settings.py"
