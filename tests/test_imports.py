"""Imports point one way: a package imports packages of lower tiers only."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import qkv

ROOT = Path(qkv.__path__[0])
TIERS = [
    {
        "arguments",
        "dtypes",
        "errors",
        "pydantic_errors",
        "files",
        "json_files",
        "limits",
        "memory",
        "messages",
        "threads",
        "allocator",
    },
    {"text", "kernels"},
    {"model"},
    {"data", "engine", "plan", "checkpoint"},
    {"generate"},
    {"evaluate"},
    {"pipeline", "check"},
    {"train"},
    {"web"},
    {"explore"},
    {"study", "serve", "cli", "__init__", "__main__"},
]
SAME_TIER = TIERS[0] | {"cli", "__init__", "__main__"}  # these import within their tier too
MODULES = {
    ".".join(("qkv", *path.relative_to(ROOT).with_suffix("").parts)): path
    for path in sorted(ROOT.rglob("*.py"))
}


def package_of(module: str) -> str:
    """qkv.model.attention_context -> model; qkv itself is __init__."""
    return [*module.split("."), "__init__"][1]


def imported_by(path: Path) -> set[str]:
    """Every qkv module that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: use absolute imports"
            package = str(node.module)
            names = {f"{package}.{alias.name}" for alias in node.names}
            found |= {
                name if name in MODULES or f"{name}.__init__" in MODULES else package
                for name in names
            }
    return {name for name in found if name.split(".")[0] == "qkv"}


def importable_by(package: str) -> set[str]:
    """The package and all lower tiers; textbook is separate, and only explore imports it."""
    if package == "textbook":
        return {package}
    tier = next((index for index, packages in enumerate(TIERS) if package in packages), None)
    assert tier is not None, f"qkv/{package} is new: add it to TIERS"
    lower = set().union(*TIERS[:tier], TIERS[tier] if package in SAME_TIER else set())
    return {package} | lower | ({"textbook"} if package == "explore" else set())


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_lower_tiers_only(module):
    imported = {package_of(name) for name in imported_by(MODULES[module])}
    allowed = importable_by(package_of(module))
    assert imported <= allowed, f"{module} imports {sorted(imported - allowed)}"


def test_imports_are_found_in_the_source():
    assert "qkv.model.attention_context" in imported_by(MODULES["qkv.model.attention"])
    assert imported_by(MODULES["qkv.model.transformer"]) >= {"qkv.errors", "qkv.model.spec"}


def packages_after(code: str) -> set[str]:
    """The top-level packages that are imported after running `code`."""
    print_modules = "; import sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", code + print_modules], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_the_model_imports_no_package_but_torch():
    added = packages_after(
        "import torch, qkv.model.transformer, qkv.model.presets"
    ) - packages_after("import torch")
    assert {name for name in added if name not in sys.stdlib_module_names} == {"qkv"}
    assert "pydantic" not in added


def test_specs_do_not_import_torch():
    assert "torch" not in packages_after("import qkv.model.presets, qkv.model.spec_io")
