"""Write the generated pages of docs/reference/: commands, recipes, model.json, Python API.

    .venv/bin/python scripts/write_reference.py          # after every change of an option
    .venv/bin/python scripts/write_reference.py FOLDER   # elsewhere, as the test does

Help texts are translated when their module is imported, so each language has its own process.
"""

import os
import subprocess
import sys
from pathlib import Path

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"
SUFFIXES = {"en": ".md", "zh": ".zh.md"}


def main() -> None:
    """Write the pages of each language in a process with that language."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else REFERENCE
    for language in SUFFIXES:
        subprocess.run(
            [sys.executable, __file__, str(folder), language],
            env={**os.environ, "QKV_LANG": language},
            check=True,
        )


def write_pages(folder: Path, language: str) -> None:
    """Write all pages of a language; those of the Python API are in English only."""
    from reference import api, cli, model_json, recipe

    pages = {"cli": cli.page(), "recipe": recipe.page(), "model-json": model_json.page()}
    texts = {name + SUFFIXES[language]: page for name, page in pages.items()}
    if language == "en":
        texts |= {f"api/{name}": page for name, page in api.pages().items()}
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        write_pages(Path(sys.argv[1]), sys.argv[2])
    else:
        main()
