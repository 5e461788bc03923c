"""The pages of the documentation: their paths, headings, links and code blocks."""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
PAIRS = [(page, other) for page in PAGES if (other := page.with_suffix(".zh.md")).exists()]
ENGLISH = [page for page in PAGES if not page.name.endswith(".zh.md")]
GUIDES = [page for page in ENGLISH if page.parent.name == "guides"]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


class Command(NamedTuple):
    """A command of a console block and the output that the page shows under it."""

    line: str
    output: str


def name(page: Path) -> str:
    """Return the path of a page below docs/."""
    return page.relative_to(DOCS).as_posix()


def blocks(page: Path, language: str = "python") -> list[tuple[int, str]]:
    """Return the code blocks of a page in a language, each with its first line number."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, match.start(2)) + 1, match[2])
        for match in BLOCK.finditer(text)
        if match[1] == language
    ]


def prose(page: Path) -> str:
    """Return the text of a page without its code blocks."""
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


def headings(page: Path) -> list[str]:
    """Return the levels of the headings, such as "##", in order."""
    return re.findall(r"^(#+) ", prose(page), re.M)


def links(page: Path) -> set[Path]:
    """Return the pages that a page links to."""
    targets = re.findall(r"\]\(([^)#\s:]+\.md)(?:#[^)]*)?\)", prose(page))
    return {(page.parent / target).resolve() for target in targets}


def commands(block: str) -> list[Command]:
    """Return the commands of a console block; comments after a command are left out."""
    found: list[Command] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append(Command(re.sub(r"\s+# .*", "", line[2:]), ""))
        else:
            found[-1] = found[-1]._replace(output=found[-1].output + line + "\n")
    return found


def check(page: Path, command: Command, done: subprocess.CompletedProcess[str]) -> None:
    """Check a command that ran: its exit code and the output, or the error, that the page shows."""
    if page.name == "troubleshooting.md" and command.output:
        assert (done.returncode, done.stderr) == (2, command.output), command.line
        return
    assert done.returncode == 0, (command.line, done.stderr[-2_000:])
    if re.search(r"qkv (translate|generate|search) ", command.line):  # a model's words
        assert len(done.stdout.splitlines()) == len(command.output.splitlines()), done.stdout
    elif command.output:
        assert form(done.stdout) == form(command.output)


def form(text: str) -> str:
    """Return a text without what depends on the training, the machine and the temporary folder."""
    return re.sub(r"[-\d][\d.,e+-]*", "#", text)
