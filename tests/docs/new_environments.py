"""New virtual environments with the built wheel and its declared dependencies, without downloads.

The dependencies are links to the files installed here; a package that pyproject.toml does not
declare cannot be imported.
"""

import os
import shutil
import subprocess
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

from docs_pages import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NOT_INHERITED = ("PYTHONPATH", "VIRTUAL_ENV", "OMP_NUM_THREADS", "HF_HUB_OFFLINE")


def run(
    line: str, folder: Path, environment: Path, seconds: int = 600
) -> subprocess.CompletedProcess[str]:
    """Run a shell line in a folder as a user who has activated the environment."""
    variables = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    path = f"{environment / 'bin'}{os.pathsep}{os.defpath}"
    cache = str(environment / "cache")
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=folder,
        env=variables | {"PATH": path, "QKV_LANG": "en", "XDG_CACHE_HOME": cache},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def build_wheel(folder: Path) -> Path:
    """Build the wheel from a copy of its sources in a folder."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "qkv", folder / "qkv", ignore=shutil.ignore_patterns("__pycache__"))
    succeed([sys.executable, "-m", "build", "--wheel", "--no-isolation"], folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def new_environment(folder: Path, wheel: Path, extras: tuple[str, ...] = ()) -> Path:
    """Make an environment with the wheel and the dependencies of qkv and of these extras."""
    succeed([sys.executable, "-m", "venv", "--without-pip", str(folder)], folder.parent)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    succeed([*pip, "--no-index", "--no-deps", str(wheel)], folder)
    (site,) = folder.glob("lib/python3*/site-packages")
    for dependency in dependencies(extras):
        link_files(dependency, site)
    return folder


def dependencies(extras: tuple[str, ...]) -> list[Distribution]:
    """The installed distributions that qkv requires, directly and through others."""
    waiting = [("qkv", extra) for extra in ("", *extras)]
    found: dict[tuple[str, str], Distribution] = {}
    while waiting:
        name, extra = key = waiting.pop()
        if key in found:
            continue
        found[key] = distribution(name)
        for required in map(Requirement, found[key].requires or []):
            if required.marker is None or required.marker.evaluate({"extra": extra}):
                needed = canonicalize_name(required.name)
                waiting += [(needed, part) for part in ("", *required.extras)]
    return [package for (name, _), package in found.items() if name != "qkv"]


def link_files(package: Distribution, site: Path) -> None:
    """Link the files and folders of a distribution into a site-packages folder."""
    for name in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
        if not (site / name).exists():
            (site / name).symlink_to(package.locate_file(name))


def succeed(command: list[str], folder: Path) -> None:
    """Run a command that must succeed."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (command, done.stderr[-2_000:])
