"""Progress reports and model cards, with a fake clock, a pseudo-terminal, and files."""

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qkv.errors import QkvError
from qkv.evaluate.scores import score
from qkv.messages import set_language
from qkv.train import metrics
from qkv.train.card import ModelCard, card_text
from qkv.train.metrics import TIMING_FIELDS, draw_curves, read_metrics
from qkv.train.report import Reporter, Throughput, format_duration


class FakeClock:
    """A clock that is set by hand."""

    def __init__(self, now: float = 1000.0):
        self.now = now

    def __call__(self) -> float:
        return self.now


def run(
    folder: Path, first: int, last: int, resumed: dict | None = None, validate: bool = True
) -> list[dict]:
    """Simulate steps first..last with a validation every 20 steps; returns the states."""
    clock, states = FakeClock(), []
    with Reporter(
        folder, 100, report_every=10, resumed=resumed, clock=clock, stream=io.StringIO()
    ) as reporter:
        for step in range(first, last + 1):
            clock.now += 0.5
            loss, tokens = 5 / step**0.3, 100 + step % 7
            reporter.step(step, loss, tokens, 0.001 * step, {"cross_entropy": loss})
            states.append(json.loads(json.dumps(reporter.state())))
            if validate and step % 20 == 0:
                reporter.record(step, "valid", loss=4 / step, bleu=float(step))
    return states


def lines(folder: Path) -> list[dict]:
    """metrics.jsonl without its times."""
    entries = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [
        {name: value for name, value in entry.items() if name not in TIMING_FIELDS}
        for entry in entries
    ]


def test_the_time_left_is_the_mean_step_time_times_the_remaining_steps():
    clock = FakeClock()
    throughput = Throughput(clock)
    assert format_duration(throughput.seconds_left(90)) == "?"
    for _ in range(10):
        clock.now += 2
        throughput.step(tokens=300)
    assert (throughput.seconds_left(90), throughput.tokens_per_second) == (180, 150)


def test_a_pause_counts_in_the_time_left_but_not_in_tokens_per_second():
    clock = FakeClock()
    throughput = Throughput(clock)
    for _ in range(10):
        clock.now += 2
        throughput.step(tokens=300)
        with throughput.paused():
            clock.now += 1
    assert (throughput.seconds_left(10), throughput.tokens_per_second) == (30, 150)


def test_tokens_per_second_are_those_of_the_recent_steps():
    clock = FakeClock()
    throughput = Throughput(clock, recent=5)
    for seconds in [60, *[1] * 20]:
        clock.now += seconds
        throughput.step(tokens=70)
    assert throughput.tokens_per_second == 70


@pytest.mark.parametrize(
    "seconds, text", [(0, "0:00:00"), (59.6, "0:01:00"), (3725, "1:02:05"), (360000, "100:00:00")]
)
def test_durations_are_formatted_as_hours_minutes_seconds(seconds, text):
    assert format_duration(seconds) == text


def test_a_log_has_one_plain_line_every_ten_seconds_and_the_last_step(tmp_path):
    clock, stream = FakeClock(), io.StringIO()
    with Reporter(tmp_path, 50, clock=clock, stream=stream) as reporter:
        for step in range(1, 51):
            clock.now += 1
            reporter.step(step, 2.5, tokens=1234, lr=1e-3)
    output = stream.getvalue().splitlines()
    assert output[0] == "step 1/50  loss 2.500  lr 1.00e-03  1,234 tokens/s  0:00:49 left"
    assert [int(line.split("/")[0].split()[1]) for line in output] == [1, 11, 21, 31, 41, 50]
    assert output[-1].endswith("0:00:00 left")


def test_the_live_line_is_translated(tmp_path):
    set_language("zh")
    try:
        stream, clock = io.StringIO(), FakeClock()
        reporter = Reporter(tmp_path, 3, clock=clock, stream=stream)
        clock.now += 2
        reporter.step(1, 2.5, tokens=100, lr=1e-3)
    finally:
        set_language("en")
    assert stream.getvalue() == "第 1/3 步  损失 2.500  学习率 1.00e-03  50 词元/秒  剩余 0:00:04\n"


def in_a_terminal(folder: Path, **environment: str) -> str:
    """The output of a reporter on a terminal of 100 columns, with escape codes."""
    program = (
        "import sys, time; from qkv.train.report import Reporter\n"
        "with Reporter(sys.argv[1], 3) as reporter:\n"
        "    for step in (1, 2, 3):\n"
        "        time.sleep(0.25); reporter.step(step, 2.5, 100, 1e-3)\n"
        "        reporter.note(f'[note] {step}')\n"
    )
    master, terminal = pty.openpty()
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")
    }
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)],
        stderr=terminal,
        stdout=terminal,
        env={**clean, "TERM": "xterm-256color", "COLUMNS": "100", **environment},
    )
    os.close(terminal)
    output = b""
    try:
        while piece := os.read(master, 4096):
            output += piece
    except OSError:  # EIO on Linux when the other side is closed
        pass
    os.close(master)
    assert process.wait(timeout=60) == 0
    return output.decode()


def test_a_terminal_has_one_updated_line_with_notes_above_it(tmp_path):
    output = in_a_terminal(tmp_path)
    assert "\x1b[2K" in output, "the line is erased and rewritten"
    assert re.search(r"step 3/3  loss 2\.500  lr 1\.00e-03  \d+ tokens/s  0:00:00 left", output)
    assert all(f"[note] {step}" in output for step in (1, 2, 3))
    assert re.search(r"\x1b\[[\d;]*3[\d;]*m", output), "colors"


def test_no_color_is_respected(tmp_path):
    output = in_a_terminal(tmp_path, NO_COLOR="1")
    assert "step 3/3" in output and not re.search(r"\x1b\[[\d;]*[34]\d[\d;]*m", output)


def test_a_dumb_terminal_has_plain_lines(tmp_path):
    assert "\x1b" not in in_a_terminal(tmp_path, TERM="dumb")


def test_a_closed_stream_does_not_end_the_run(tmp_path):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream:
        reporter = Reporter(tmp_path, 3, report_every=1, stream=stream)
        for step in (1, 2, 3):
            reporter.step(step, 2.5, 100, 1e-3)
        assert len(lines(tmp_path)) == 3
        os.dup2(os.open(os.devnull, os.O_WRONLY), write)  # so that close() can flush


def test_each_report_is_one_line_with_the_mean_over_its_tokens(tmp_path):
    run(tmp_path, 1, 100)
    weights = np.array([100 + step % 7 for step in range(1, 11)])
    losses = np.array([5 / step**0.3 for step in range(1, 11)])
    first = lines(tmp_path)[0]
    assert first == {
        "step": 10,
        "kind": "train",
        "loss": pytest.approx(np.average(losses, weights=weights), abs=1e-12),
        "cross_entropy": pytest.approx(np.average(losses, weights=weights), abs=1e-12),
        "lr": 0.01,
        "tokens": int(weights.sum()),
    }
    assert [entry["step"] for entry in lines(tmp_path) if entry["kind"] == "valid"] == [
        20,
        40,
        60,
        80,
        100,
    ]


def test_every_report_is_on_disk_before_the_next_step(tmp_path):
    reporter = Reporter(tmp_path, 100, report_every=1, stream=io.StringIO())
    for step in (1, 2, 3):
        reporter.step(step, 2.5, 100, 1e-3)
        assert [entry["step"] for entry in read_metrics(tmp_path / "metrics.jsonl")] == list(
            range(1, step + 1)
        )


@pytest.mark.parametrize("saved, killed", [(40, 57), (37, 57), (40, 40), (1, 3), (60, 100)])
def test_a_resumed_run_writes_the_metrics_of_an_uninterrupted_one(tmp_path, saved, killed):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir(), broken.mkdir()
    run(whole, 1, 100)
    states = run(broken, 1, killed)
    with (broken / "metrics.jsonl").open("a") as file:
        file.write('{"step": 12, "kind": "tr')  # killed while writing a line
    run(broken, saved + 1, 100, resumed=states[saved - 1])
    assert lines(broken) == lines(whole)
    seconds = [entry["seconds"] for entry in read_metrics(broken / "metrics.jsonl")]
    assert seconds == sorted(seconds), "the training time continues"


def test_a_validation_repeated_after_resuming_is_not_written_twice(tmp_path):
    states = run(tmp_path, 1, 40)
    before = lines(tmp_path)
    with Reporter(tmp_path, 100, 10, resumed=states[-1], stream=io.StringIO()) as reporter:
        reporter.record(40, "valid", loss=0.1, bleu=40.0)
    assert lines(tmp_path) == before


def test_a_new_run_starts_a_new_file(tmp_path):
    run(tmp_path, 1, 30)
    Reporter(tmp_path, 100, stream=io.StringIO())
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


def test_a_step_that_is_not_finite_is_counted_and_left_out_of_the_mean(tmp_path):
    reporter = Reporter(tmp_path, 4, report_every=2, stream=io.StringIO())
    for step, loss in enumerate([2.0, float("nan"), float("inf"), float("nan")], start=1):
        reporter.step(step, loss, 100, 1e-3)
    first, second = lines(tmp_path)
    assert (first["loss"], first["skipped"], second["loss"], second["skipped"]) == (2.0, 1, None, 2)


def test_a_full_disk_gives_one_line(tmp_path):
    reporter = Reporter(tmp_path, 4, report_every=1, stream=io.StringIO())
    reporter.path = Path("/dev/full")
    with pytest.raises(QkvError) as error:
        reporter.step(1, 2.0, 100, 1e-3)
    assert str(error.value) == (
        "/dev/full: cannot be written (No space left on device); "
        "free disk space, then continue with --resume"
    )


@pytest.mark.parametrize("language", ["en", "zh"])
def test_curves_are_drawn_from_the_metrics(tmp_path, recwarn, language):
    run(tmp_path, 1, 100)
    set_language(language)
    try:
        path = draw_curves(tmp_path / "metrics.jsonl")
    finally:
        set_language("en")
    picture = np.asarray(Image.open(path).convert("RGB"))
    assert path == tmp_path / "curves.png"
    assert picture.shape == (1170, 1200, 3), "loss, BLEU and learning rate, 2.6 inches each"
    blue = np.abs(picture.astype(int) - (31, 119, 180)).sum(-1) < 30
    orange = np.abs(picture.astype(int) - (255, 127, 14)).sum(-1) < 30
    assert blue[:390].any() and orange[:390].any() and blue[390:780].any() and blue[780:].any()
    assert [str(warning.message) for warning in recwarn if "Glyph" in str(warning.message)] == []


def test_curves_without_a_validation_have_no_bleu(tmp_path):
    run(tmp_path, 1, 30, validate=False)
    assert Image.open(draw_curves(tmp_path / "metrics.jsonl")).size == (1200, 780)


def curves_of(folder: Path) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """The panels of curves.png, without the learning rate."""
    curves = metrics.curves_of(read_metrics(folder / "metrics.jsonl"))
    return {name: lines for name, lines in curves.items() if name != "learning rate"}


def test_a_panel_has_one_quantity_for_training_and_validation(tmp_path):
    with Reporter(tmp_path, 4, report_every=2, stream=io.StringIO()) as reporter:
        for step in range(1, 5):
            reporter.step(step, 3.0, 100 * step, 1e-3, {"cross_entropy": 2.0 + step})
        reporter.record(4, "valid", loss=2.5, perplexity=12.2)
    first = (3.0 * 100 + 4.0 * 200) / 300
    second = (5.0 * 300 + 6.0 * 400) / 700
    assert curves_of(tmp_path) == {
        "cross-entropy (nats per token)": {
            "training": [(2, first), (4, second)],
            "validation": [(4, 2.5)],
        },
        "training objective": {"training": [(2, 3.0), (4, 3.0)]},
    }


def test_metrics_of_earlier_versions_are_drawn_with_the_objective_in_its_own_panel(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 2, "kind": "train", "loss": 3.0, "lr": 0.1}\n'
        '{"step": 2, "kind": "valid", "loss": 2.0, "perplexity": 7.4}\n'
    )
    assert curves_of(tmp_path) == {
        "cross-entropy (nats per token)": {"validation": [(2, 2.0)]},
        "training objective": {"training": [(2, 3.0)]},
    }
    assert draw_curves(tmp_path / "metrics.jsonl").is_file()


def test_an_embedding_run_has_a_panel_for_each_of_its_losses(tmp_path):
    with Reporter(tmp_path, 4, report_every=4, stream=io.StringIO()) as reporter:
        for step, name in enumerate(("mlm_loss", "mlm_loss", "contrastive_loss"), start=1):
            reporter.step(step, 1.0 * step, 100, 1e-3, {name: 1.0 * step})
        reporter.step(4, 4.0, 100, 1e-3, {"contrastive_loss": 4.0})
        reporter.record(4, "valid", loss=2.0, recall_at_1=0.5, mlm_loss=1.7)
    assert curves_of(tmp_path) == {
        "contrastive loss (nats per pair)": {"training": [(4, 3.5)], "validation": [(4, 2.0)]},
        "MLM loss (nats per token)": {"training": [(4, 1.5)], "validation": [(4, 1.7)]},
        "recall@1": {"validation": [(4, 0.5)]},
    }


def test_a_checkpoint_of_an_earlier_version_resumes_its_report(tmp_path):
    old = {"step": 1, "seconds": 1.0, "loss_sum": 200.0, "tokens": 100, "all_tokens": 100}
    with Reporter(tmp_path, 2, resumed={**old, "skipped": 0}, stream=io.StringIO()) as reporter:
        reporter.step(2, 4.0, 100, 1e-3, {"cross_entropy": 3.0})
    (entry,) = lines(tmp_path)
    assert (entry["loss"], entry["cross_entropy"]) == (3.0, 3.0)  # steps 1 and 2; step 2


def test_curves_without_metrics_are_an_error(tmp_path):
    with pytest.raises(QkvError) as missing:
        draw_curves(tmp_path / "metrics.jsonl")
    assert (
        str(missing.value)
        == f"{tmp_path / 'metrics.jsonl'}: no such file; give the metrics.jsonl of a run"
    )
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(QkvError) as empty:
        draw_curves(tmp_path / "metrics.jsonl")
    assert (
        str(empty.value) == f"{tmp_path / 'metrics.jsonl'}: has no report yet; train for more steps"
    )


def test_reporting_does_not_import_matplotlib():
    program = "import sys, qkv.train.report; print('matplotlib' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
        == "False\n"
    )


def test_a_model_card_has_usage_data_model_training_and_scores():
    scores = score(
        ["machine learning is interesting"], ["machine learning is very interesting"], "en"
    )
    card = card_text(
        ModelCard(
            {"pairs": 20000, "files": "a.zh | a.en"},
            {"held-out": str(scores)},
            ("机器学习很有趣", "it's fun"),
            folder="runs/zh-en",
            model={"d_model": 256},
            training={"steps": 2000},
        )
    )
    assert [line for line in card.splitlines() if line.startswith("#")] == [
        "# zh-en",
        "## Usage",
        "## Data",
        "## Model",
        "## Training",
        "## Scores",
        "## Limits",
    ]
    assert "| pairs | 20,000 |\n| files | a.zh \\| a.en |" in card
    assert f"held-out:\n```\n{scores}\n```" in card and "BLEU|nrefs:1|case:mixed" in card
    assert "$ qkv translate runs/zh-en '机器学习很有趣'\nit's fun" in card


def empty_card(folder: str, example: tuple[str, str], **fields) -> str:
    """The card of a model of which only the usage is known."""
    return card_text(ModelCard({}, {}, example, folder=folder, model={}, training={}, **fields))


def test_the_cards_of_generators_and_embedders_have_their_own_commands():
    options = {"max_new_tokens": 5, "seed": 3}
    card = empty_card("runs/w", ("ROMEO:", " ay me"), command="generate", options=options)
    assert "$ qkv generate runs/w ROMEO: --max-new-tokens 5 --seed 3\nROMEO: ay me\n" in card
    assert "generator([\"ROMEO:\"], max_new_tokens=5, seed=3)  # [' ay me']" in card
    card = empty_card("runs/v", ("a cat", "[0.1, ...]"), command="embed")
    assert "$ qkv embed runs/v sentences.txt --out vectors.npy\n" in card
    assert 'embedder(["a cat"])  # [[0.1, ...]]' in card


def test_the_python_code_of_a_model_card_is_valid_for_any_sentence():
    odd = "He said: \"it's \\ 5 o'clock\""
    card = empty_card("runs/my model", (odd, odd))
    python = card.split("```python\n")[1].split("\n```")[0]
    called = []
    fake = type(
        "Module",
        (),
        {"load": staticmethod(lambda folder: lambda texts: called.append((folder, texts)))},
    )
    exec(python.replace("import qkv\n", ""), {"qkv": fake})
    assert called == [("runs/my model", [odd])]
    assert "qkv translate 'runs/my model' " in card and "Not measured yet." in card
