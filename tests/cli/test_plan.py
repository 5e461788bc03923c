"""`qkv plan` answers from the description alone, in tables or JSON, and refuses in one line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qkv.cli.app import run
from qkv.errors import QkvError
from qkv.messages import set_language
from qkv.model.door import to_json
from qkv.model.presets import PRESETS, preset


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_preset_a_file_and_a_folder_give_the_same_plan(capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(to_json(preset("gpt2")), encoding="utf-8")
    plans = [
        planned(capsys, name) for name in ("gpt2", str(tmp_path / "model.json"), str(tmp_path))
    ]
    assert plans[0] == plans[1] == plans[2]
    assert plans[0]["parameters"]["total"] == 124_439_808


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_printed_in_both_languages(name: str, language: str, capsys: Any) -> None:
    set_language(language)
    try:
        assert run(["plan", name, "--batch", "2", "--length", "128"]) == 0
    finally:
        set_language("en")
    out = capsys.readouterr().out
    assert f"{planned(capsys, name)['parameters']['total']:,}" in out
    assert ("why they differ" in out) == (language == "en") and ("为何不同" in out) == (
        language == "zh"
    )


def test_a_plan_needs_no_torch() -> None:
    """From the spec alone: neither the counting nor the command imports torch unless a rate is to be measured."""
    code = (
        "import sys; from qkv.cli.app import run; run(['plan', 'mixtral', '--tokens', '9', '--gflops', '1'])\n"
        "assert 'torch' not in sys.modules"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "46,702,792,704" in result.stdout


def test_lengths_and_types_are_those_asked_for(capsys: Any) -> None:
    facts = planned(
        capsys,
        "paper-base",
        "--batch",
        "3",
        "--length",
        "7",
        "--source-length",
        "11",
        "--dtype",
        "bfloat16",
    )
    assert facts["pass"] == {"batch": 3, "source": 11, "target": 7, "dtype": "bfloat16"}
    assert facts["bytes"]["weights"] == 2 * facts["parameters"]["total"]
    assert facts["bytes"]["cache"] == 3 * (7 + 11) * 6 * 2 * 512 * 2


def test_int8_is_for_weights_and_training_stays_in_float32(capsys: Any) -> None:
    facts = planned(capsys, "gpt2", "--dtype", "int8")
    assert facts["bytes"]["weights"] * 4 == facts["bytes"]["gradients"] == 4 * 124_439_808


def test_a_cluster_needs_its_devices_share_of_the_hours(capsys: Any) -> None:
    """6 N D / rate would be 6 x 85e6 x 1e9 / 1e14 s = 1.4 h; scores and head add their part."""
    one = planned(capsys, "gpt2", "--tokens", "1000000000", "--gflops", "1e5")["time"]
    eight = planned(capsys, "gpt2", "--tokens", "1000000000", "--gflops", "1e5", "--devices", "8")[
        "time"
    ]
    assert one["hours_at_full_rate"] == pytest.approx(8 * eight["hours_at_full_rate"])
    assert one["hours_at_full_rate"] == pytest.approx(797.8e6 * 1e9 / 1e14 / 3600, rel=1e-3)
    assert one["measured"] is False


def test_time_on_this_machine_is_measured(capsys: Any) -> None:
    facts = planned(capsys, "tiny", "--tokens", "1000")["time"]
    assert facts["measured"] is True and facts["gflops"] > 0
    assert run(["plan", "tiny", "--tokens", "1000"]) == 0
    assert "measured here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("gtp2", "gtp2: no such preset; did you mean 'gpt2'?"),
        ("none/model.json", "none/model.json: no such file; check the path"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(name: str, line: str) -> None:
    with pytest.raises(QkvError) as refusal:
        run(["plan", name])
    assert str(refusal.value) == line


def test_a_mistake_leaves_with_2_and_one_line() -> None:
    command = [sys.executable, "-m", "qkv", "plan", "lama"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (
        2,
        "",
        "lama: no such preset; did you mean 'llama'?\n",
    )


def test_a_folder_without_a_model_and_a_file_that_is_none_are_refused_in_one_line(
    tmp_path: Path,
) -> None:
    with pytest.raises(QkvError, match=r": no model\.json; is this a model folder\?$"):
        run(["plan", str(tmp_path)])
    (tmp_path / "model.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(
        QkvError, match=r"model\.json: a binary file, not text; give plain text in UTF-8$"
    ):
        run(["plan", str(tmp_path / "model.json")])
    (tmp_path / "model.json").write_text("{")
    with pytest.raises(QkvError, match=r"model\.json: is not JSON; "):
        run(["plan", str(tmp_path)])


def test_a_length_beyond_the_table_of_places_is_refused() -> None:
    with pytest.raises(
        QkvError, match=r"^length: 2000 tokens are too long; this model reads at most 1024$"
    ):
        run(["plan", "gpt2", "--length", "2000"])
