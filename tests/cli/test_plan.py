"""`qkv plan` prints the costs of a spec as tables or JSON; an error is one line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qkv.cli.app import run
from qkv.errors import QkvError
from qkv.messages import set_language
from qkv.model.presets import PRESETS, preset
from qkv.model.spec_io import to_json


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
        assert run(["plan", name, "--batch", "2", "--seq-len", "128"]) == 0
    finally:
        set_language("en")
    out = capsys.readouterr().out
    assert f"{planned(capsys, name)['parameters']['total']:,}" in out
    assert ("reasons for the difference" in out) == (language == "en") and (
        "差异的原因" in out
    ) == (language == "zh")


def test_a_plan_does_not_import_torch() -> None:
    """torch is imported only to measure the rate."""
    code = (
        "import sys; from qkv.cli.app import run\n"
        "run(['plan', 'mixtral', '--tokens', '9', '--gflops', '1'])\n"
        "assert 'torch' not in sys.modules"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "46,702,792,704" in result.stdout


def test_lengths_and_dtype_are_options(capsys: Any) -> None:
    figures = planned(
        capsys,
        "paper-base",
        "--batch",
        "3",
        "--seq-len",
        "7",
        "--source-len",
        "11",
        "--dtype",
        "bfloat16",
    )
    assert figures["pass"] == {"batch": 3, "source": 11, "target": 7, "dtype": "bfloat16"}
    assert figures["bytes"]["weights"] == 2 * figures["parameters"]["total"]
    assert figures["bytes"]["cache"] == 3 * (7 + 11) * 6 * 2 * 512 * 2


def test_int8_applies_to_weights_only(capsys: Any) -> None:
    figures = planned(capsys, "gpt2", "--dtype", "int8")
    assert figures["bytes"]["weights"] * 4 == figures["bytes"]["gradients"] == 4 * 124_439_808


def test_hours_are_divided_by_the_number_of_devices(capsys: Any) -> None:
    """6 N D / rate is 6 x 85e6 x 1e9 / 1e14 s = 1.4 h, without scores and head."""
    single = planned(capsys, "gpt2", "--tokens", "1000000000", "--gflops", "1e5")["time"]
    eight = planned(capsys, "gpt2", "--tokens", "1000000000", "--gflops", "1e5", "--devices", "8")[
        "time"
    ]
    assert single["hours_at_full_rate"] == pytest.approx(8 * eight["hours_at_full_rate"])
    assert single["hours_at_full_rate"] == pytest.approx(797.8e6 * 1e9 / 1e14 / 3600, rel=1e-3)
    assert single["measured"] is False


def test_time_on_this_machine_is_measured(capsys: Any) -> None:
    figures = planned(capsys, "tiny", "--tokens", "1000")["time"]
    assert figures["measured"] is True and figures["gflops"] > 0
    assert run(["plan", "tiny", "--tokens", "1000"]) == 0
    assert "measured: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("gtp2", "gtp2: no such preset; did you mean 'gpt2'?"),
        ("none/model.json", "none/model.json: no such file; check the path"),
    ],
)
def test_an_unknown_model_is_rejected_in_one_line(name: str, line: str) -> None:
    with pytest.raises(QkvError) as error:
        run(["plan", name])
    assert str(error.value) == line


def test_an_error_exits_with_2_and_one_line() -> None:
    command = [sys.executable, "-m", "qkv", "plan", "lama"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (
        2,
        "",
        "lama: no such preset; did you mean 'llama'?\n",
    )


def test_a_folder_or_file_without_a_spec_is_rejected_in_one_line(tmp_path: Path) -> None:
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


def test_a_length_beyond_the_context_is_rejected() -> None:
    with pytest.raises(QkvError) as error:
        run(["plan", "gpt2", "--seq-len", "2000"])
    assert str(error.value) == (
        "--seq-len: 2000 tokens are too many; the context length of this model is 1024"
    )


@pytest.mark.parametrize(("alias", "name"), [("bf16", "bfloat16"), ("fp32", "float32")])
def test_dtypes_have_short_names(alias: str, name: str, capsys: Any) -> None:
    assert planned(capsys, "tiny", "--dtype", alias) == planned(capsys, "tiny", "--dtype", name)
