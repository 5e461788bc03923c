"""Latency: start-up, building the demo corpus, batch planning, long texts, and the explorer page.

The page needs an installed Chromium. Prints median and best seconds beside a goal for an idle
machine. The tests count operations instead, because times depend on the machine.
"""

import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)  # not this folder: its tokenizers.py is not the library
sys.path.append(str(ROOT / "tests" / "explore"))

ROUNDS = 3
MIB = 1 << 20


def main() -> None:
    from browser import NAMES, chromium

    print("| | median, s | best, s | goal, s |\n|---|---|---|---|")
    for name, goal, round_ in [*programs(), *long_texts()]:
        report(name, goal, [seconds(round_) for _ in range(ROUNDS)])
    if not any(map(shutil.which, NAMES)):
        print("no Chromium here: the page is not measured")
        return
    with chromium() as browser:
        for name, goal, measure in page_rounds(browser):
            report(name, goal, [measure() for _ in range(ROUNDS)])


def report(name: str, goal: float, times: list[float]) -> None:
    print(f"| {name} | {statistics.median(times):.3f} | {min(times):.3f} | {goal} |", flush=True)


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


# ── Without a browser ─────────────────────────────────────────────────────────────────────────
def programs() -> Iterator[tuple[str, float, Callable[[], object]]]:
    import numpy as np
    from small_explorers import explorer_of, tokenizer

    from qkv.data.batches import BatchPlan
    from qkv.data.builtin import compositions
    from qkv.model.presets import decoder_only
    from qkv.model.spec import Attention, Dense
    from qkv.plan.rate import measured_gflops

    rng = np.random.default_rng(0)
    source = rng.integers(1, 80, MIB)
    tokens = tokenizer()
    explorer = explorer_of(
        decoder_only(tokens.vocab_size, 192, 12, Attention(12, 12, 16), Dense(768, "gelu")), tokens
    )
    explorer.explored.model.float()

    def open_512_tokens() -> None:
        explorer.passes.clear()
        this = f"pass/{explorer.open('我' * 170)['id']}"
        explorer.answer(f"{this}/thumbnails/decoder/0")
        explorer.answer(f"{this}/attention/decoder/0/3")

    yield (
        "qkv --help",
        0.5,
        lambda: subprocess.run(
            [sys.executable, "-m", "qkv", "--help"], cwd=ROOT, capture_output=True, check=True
        ),
    )
    yield "building the built-in corpus", 1, compositions.__wrapped__
    yield (
        "planning a million pairs",
        4,
        lambda: BatchPlan(source, source, 4096, seed=1).batch(123_456),
    )
    yield "measuring GFLOP/s for 0.2 s", 1, lambda: measured_gflops(0.2)
    yield "512 tokens, 12 layers x 12 heads, opened", 3, open_512_tokens


def long_texts() -> Iterator[tuple[str, float, Callable[[], object]]]:
    """Encoding a text of twice the length takes at most 2.5 times as long."""
    from qkv.text.train_tokenizer import train_tokenizer

    tokenizer = train_tokenizer(
        "byte_bpe", ["the quick brown fox, 1234567890 times", "aaaa aaaa"] * 3, vocab_size=400
    )
    digits = "".join(random.Random(0).choices("0123456789", k=2 * MIB))
    for name, text in (("one letter", "a" * 2 * MIB), ("digits", digits)):
        half = text[:MIB]
        goal = round(
            2.5 * min(seconds(lambda half=half: tokenizer.encode(half)) for _ in range(ROUNDS)), 3
        )
        yield (
            f"2 MiB of {name} (goal: 2.5 times 1 MiB)",
            goal,
            lambda text=text: tokenizer.encode(text),
        )


# ── The explorer page ─────────────────────────────────────────────────────────────────────────
def page_rounds(browser: Any) -> Iterator[tuple[str, float, Callable[[], float]]]:
    from browser import served
    from small_explorers import explorer_of, small

    from qkv.cli.explore import open_explorer
    from qkv.explore.app import make_app
    from qkv.model.presets import decoder_only
    from qkv.model.spec import Attention, Dense
    from qkv.text.train_tokenizer import train_tokenizer

    explorers = {"random model": small("generator")}
    if (ROOT / "runs" / "demo" / "model.json").is_file():
        explorers["runs/demo"] = open_explorer(ROOT / "runs" / "demo")
    for name, explorer in explorers.items():
        with served(make_app(explorer)) as address:
            yield (
                f"first view of the page, {name}",
                1,
                lambda address=address: first_view(browser, address),
            )
    tokens = train_tokenizer("char", ["今天天气真好 abcdefghijklmnopqrstuvwxyz"], 64)
    long = replace(
        decoder_only(tokens.vocab_size, 48, 12, Attention(12, 12, 4), Dense(96, "gelu")),
        max_len=512,
    )
    with served(make_app(explorer_of(long, tokens))) as address:
        for part, goal in (
            ("opened", 3),
            ("attention", 3),
            ("slowest frame while scrolling", 0.25),
        ):
            yield (
                f"512 tokens in 144 heads: {part}",
                goal,
                lambda part=part: long_text(browser, address)[part],
            )


def first_view(browser: Any, address: str) -> float:
    from browser import Tab, until
    from test_page_layout import FIRST_VIEW

    tab = Tab(browser)
    tab.page.add_init_script(FIRST_VIEW)
    tab.open(address)
    at = until(tab.page, "window.firstView")["at"]
    tab.close()
    return at / 1_000


def long_text(browser: Any, address: str) -> dict[str, float]:
    from browser import tab, until

    with tab(browser, address) as page:
        page.fill("textarea", ("今天天气真好 abc" * 60)[:500])
        page.evaluate("window.began = performance.now()")
        page.click(".text-form .main")
        until(page, "document.querySelectorAll('[data-position]').length > 490")
        opened = page.evaluate("performance.now() - window.began")
        page.evaluate("window.began = performance.now()")
        page.click("#tab-attention")
        until(
            page,
            "document.querySelector('.panel canvas[data-drawn]') && "
            "document.querySelectorAll('.thumbnails canvas[data-drawn]').length >= 12",
        )
        attention = page.evaluate("performance.now() - window.began")
        frame = page.evaluate("""(async () => { let worst = 0, last = performance.now();
            for (let i = 0; i < 30; i++) {
                document.querySelector('.thumbnails').scrollTop = i * 20;
                window.scrollTo(0, i * 20);
                await new Promise(requestAnimationFrame);
                worst = Math.max(worst, performance.now() - last);
                last = performance.now();
            }
            return worst; })()""")
        return {
            "opened": opened / 1_000,
            "attention": attention / 1_000,
            "slowest frame while scrolling": frame / 1_000,
        }


if __name__ == "__main__":
    main()
