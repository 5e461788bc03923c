"""Make the pictures of the README in docs/images/ from the model of `make demo`.

    .venv/bin/python scripts/make_images.py

explorer.png is a screenshot of the explorer page (playwright, the installed Chromium),
attention.png the plot of `qkv attention`. Both are reduced to 64 colors to stay below 150 KB.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
MODEL = ROOT / "runs" / "demo"
TEXT = "机器学习很有趣"
SIZE = {"width": 1_100, "height": 760}  # of the screenshot, in pixels
PLOT_WIDTH = 640
COLORS, MAX_BYTES = 64, 150_000


def main() -> None:
    """Write both pictures; the files in between are in a temporary folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        qkv("explore", MODEL, "--text", TEXT, "--out", folder / "page.html")
        screenshot(folder / "page.html", folder / "explorer.png")
        qkv("attention", MODEL, TEXT, "--out", folder / "attention.png")
        reduce(folder / "explorer.png", SIZE["width"])
        reduce(folder / "attention.png", PLOT_WIDTH)


def qkv(*arguments: object) -> None:
    """Run one command of qkv, with English messages."""
    command = [sys.executable, "-m", "qkv", "--lang", "en", *map(str, arguments)]
    subprocess.run(command, check=True, timeout=300)


def screenshot(page_file: Path, out: Path) -> None:
    """Photograph the attention view of the page in a browser with a new profile."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, locale="en-US", color_scheme="light")
        page.goto(page_file.as_uri())
        page.wait_for_selector("#view > *", timeout=60_000)
        page.screenshot(path=out)
        browser.close()


def reduce(path: Path, width: int) -> None:
    """Write the picture to docs/images with this width and few colors; check its size."""
    picture = Image.open(path).convert("RGB")
    height = round(picture.height * width / picture.width)
    small = picture.resize((width, height), Image.Resampling.LANCZOS).quantize(COLORS)
    out = IMAGES / path.name
    out.parent.mkdir(parents=True, exist_ok=True)
    small.save(out, optimize=True)
    assert out.stat().st_size < MAX_BYTES, f"{out}: {out.stat().st_size} bytes"
    print(out.relative_to(ROOT), small.size, out.stat().st_size)


if __name__ == "__main__":
    main()
