"""The README, the first block of each guide and the examples run as written for a new user.

The user has a new environment with the wheel, and the files of the repository but not its package.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from docs_pages import BLOCK, GUIDES, ROOT, blocks, check, commands, name
from new_environments import build_wheel, new_environment, run

README = ROOT / "README.md"
DEMOS = ("demo", "demo-generate", "demo-embed")
EXTRA = re.compile(r"qkv\[(\w+)\]|'\.\[(\w+)\]'")
EXAMPLES = {  # with arguments as their docstrings describe them, and few steps
    "train_in_memory.py": "20",
    "custom_positions.py": "20",
    "training_loop.py": "my.en 50",
    "attention_maps.py": "runs/stories 'i like' attention.png",
    "vector_index.py": "4",
    "export_to_transformers.py": "runs/stories exported",
}
TRAIN_STORIES = "qkv train generate --text my.en --out runs/stories --set model=lm-0.3m"
SHORT = "--set tokenizer=byte_bpe --set vocab_size=300 --set context_length=32 --set steps=4"
pytestmark = [pytest.mark.serial, pytest.mark.slow]
Environments = Callable[[tuple[str, ...]], Path]


@pytest.fixture(scope="module")
def environments(tmp_path_factory) -> Environments:
    """Return a function that makes the environment of some extras once."""
    folder = tmp_path_factory.mktemp("environments")
    wheel = build_wheel(tmp_path_factory.mktemp("wheel"))
    made: dict[tuple[str, ...], Path] = {}

    def environment(extras: tuple[str, ...]) -> Path:
        if extras not in made:
            made[extras] = new_environment(folder / "-".join(["core", *extras]), wheel, extras)
        return made[extras]

    return environment


@pytest.fixture(scope="module")
def clone(environments, tmp_path_factory) -> Path:
    """The repository without its package, with `make demo` done in its .venv."""
    folder = tmp_path_factory.mktemp("clone")
    for file in ("Makefile", "pyproject.toml", "setup.py", "constraints.txt"):
        shutil.copy(ROOT / file, folder)
    for part in ("examples", "recipes"):
        shutil.copytree(ROOT / part, folder / part)
    environment = environments(())
    (folder / ".venv").symlink_to(environment)
    (environment / "core.stamp").touch()  # `make` need not install
    done = run("make --no-print-directory demo", folder, environment)
    assert done.returncode == 0, done.stderr[-2_000:]
    return folder


@pytest.fixture(scope="module")
def demos(clone, environments) -> Path:
    """The clone after the three demos of the quickstart, two of them shorter."""
    for demo in ("generate", "embed"):
        done = run(f"qkv demo {demo} --minutes 0.5", clone, environments(()))
        assert done.returncode == 0, done.stderr[-2_000:]
    return clone


@pytest.fixture(scope="module")
def after_readme(clone, environments) -> Path:
    """The clone after all commands of the README, which print what it shows."""
    for _, block in blocks(README, "console"):
        for command in commands(block):
            if command.line != "make demo":
                done = run(command.line, clone, environments(()))
                assert done.returncode == 0, (command.line, done.stderr[-2_000:])
                assert command.output in done.stdout, (command.line, done.stdout)
    return clone


def test_the_environment_has_only_the_declared_packages(clone, environments):
    script = "import qkv, importlib.util as u; print(qkv.__file__, u.find_spec('pytest'))"
    done = run(f'python -c "{script}"', clone, environments(()))
    file, pytest_found = done.stdout.split()
    assert Path(file).is_relative_to(environments(())) and pytest_found == "None", done.stderr


def test_the_readme_runs_in_a_new_environment(after_readme, environments):
    ((_, code),) = blocks(README, "python")
    (after_readme / "readme.py").write_text(code, encoding="utf-8")
    done = run("python readme.py", after_readme, environments(()))
    assert done.stdout.splitlines()[:1] == ["i love machine learning"], done.stderr[-2_000:]


@pytest.mark.parametrize("page", GUIDES, ids=[name(page) for page in GUIDES])
def test_the_first_block_of_a_guide_runs_in_a_new_environment(page, demos, environments, tmp_path):
    (tmp_path / "runs").mkdir()
    for folder in (*(f"runs/{demo}" for demo in DEMOS), "examples", "recipes"):
        (tmp_path / folder).symlink_to(demos / folder)
    before, _, _ = page.read_text(encoding="utf-8").partition("```console")
    environment = environments(extras_of(BLOCK.sub("", before)))
    _, block = blocks(page, "console")[0]
    for command in commands(block):
        check(page, command, run(command.line, tmp_path, environment))


@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_an_example_runs_in_a_new_environment(script, after_readme, environments):
    if not (after_readme / "runs/stories").exists():
        trained = run(f"{TRAIN_STORIES} {SHORT}", after_readme, environments(()))
        assert trained.returncode == 0, trained.stderr[-2_000:]
    extras = extras_of((ROOT / "examples" / script).read_text(encoding="utf-8"))
    line = f"python examples/{script} {EXAMPLES[script]}"
    done = run(line, after_readme, environments(extras))
    assert done.returncode == 0 and done.stdout, done.stderr[-2_000:]


def extras_of(text: str) -> tuple[str, ...]:
    """The extras of qkv that a text tells the user to install."""
    return tuple(sorted({first or second for first, second in EXTRA.findall(text)}))
