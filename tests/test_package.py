"""The sdist and the wheel have all files, and the installed package works outside the repository.

The wheel is installed into a new environment. Its dependencies are not downloaded: a .pth file adds
the site-packages of this Python after those of the environment, so `qkv` comes from the wheel.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    str(path.relative_to(ROOT))
    for path in (ROOT / "qkv").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
}
DEMO = ["demo", "--minutes", "0.1", "--out", "model"]
PRINT_PATHS = """
import json, qkv, torch
from qkv.kernels.build import library
native = library(torch.float32)
print(json.dumps([qkv.__file__, native._name, native.qkv_check()]))
"""


def run(*command: object, cwd: Path, **environment: str) -> str:
    """The output of a command that must succeed; the repository is not on its path."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The folder of sdist and wheel, built from a copy without downloads."""
    folder = tmp_path_factory.mktemp("built")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "qkv", folder / "qkv", ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "build", "--no-isolation", cwd=folder)
    return folder / "dist"


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """qkv(...): runs the installed command in an empty folder."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "env", cwd=folder)
    python = folder / "env" / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        wheel,
        cwd=folder,
    )
    site = Path(
        run(
            python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder
        ).strip()
    )
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    work = folder / "work"
    work.mkdir()

    def qkv(*arguments: str, program: str = "qkv") -> str:
        return run(
            python.with_name(program),
            *arguments,
            cwd=work,
            XDG_CACHE_HOME=str(folder / "cache"),
            QKV_LANG="en",
            OMP_NUM_THREADS="1",
        )

    qkv.folder = folder
    return qkv


@pytest.fixture(scope="module")
def model(installed) -> Path:
    """A model that the installed demo trained for a few seconds."""
    installed(*DEMO)
    return installed.folder / "work" / "model"


def test_archives_have_every_file_of_the_package_and_the_wheel_nothing_else(built):
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    names = {
        name
        for name in zipfile.ZipFile(wheel).namelist()
        if not re.match(r"qkv-[^/]+\.dist-info/", name)
    }
    assert names == FILES
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert packed >= FILES | {"pyproject.toml", "README.md", "LICENSE"}


def test_the_metadata_declares_the_tested_python_version(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        metadata = archive.read(name).decode()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert re.findall(
        r"^Classifier: Programming Language :: Python :: (\d+\.\d+)$", metadata, re.M
    ) == [version]
    (required,) = re.findall(r"^Requires-Python: (.*)$", metadata, re.M)
    assert set(required.split(",")) == {
        f">={version}",
        f"<{sys.version_info.major}.{sys.version_info.minor + 1}",
    }


@pytest.mark.native
def test_the_native_library_is_compiled_from_the_installed_package(installed):
    package, native, check = json.loads(installed("-c", PRINT_PATHS, program="python"))
    assert Path(package).is_relative_to(installed.folder / "env")
    assert Path(native).parent == installed.folder / "cache" / "qkv" and check == 0


def test_the_installed_demo_trains_a_model_that_passes_all_checks(installed, model):
    assert (model / "model.safetensors").exists()
    assert json.loads(installed("check", "model", "--json"))["passed"] is True


def test_the_installed_explorer_writes_a_complete_page(installed, model):
    installed("explore", "model", "--text", "我爱机器学习", "--out", "page.html")
    page = (model.parent / "page.html").read_text(encoding="utf-8")
    source = (ROOT / "qkv" / "explore" / "page" / "style.css").read_text(encoding="utf-8")
    assert source.strip() in page and "我爱机器学习" in page
