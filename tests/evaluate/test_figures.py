"""Attention heatmaps, read back from their PNG; a missing glyph is a failure."""

import logging
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from qkv.errors import QkvError
from qkv.evaluate.figures import attention_heatmap, characters_of, fonts_for

ZH = ["那", "只", "动物", "没有", "过", "马路", "，", "因为", "它", "太", "累", "了", "。"]
EN = ["the", "animal", "did", "n't", "cross", "because", "it", "was", "too", "tired", "."]


@pytest.fixture(autouse=True)
def strict():
    """matplotlib warns of each missing glyph; here that is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        image.verify()
    return np.asarray(Image.open(path).convert("RGB"))  # (height, width, 3)


def random_weights(
    heads: int | None = None, queries: int = len(EN), keys: int = len(ZH)
) -> torch.Tensor:
    torch.manual_seed(0)
    shape = (queries, keys) if heads is None else (heads, queries, keys)
    return torch.randn(shape, dtype=torch.float64, requires_grad=True).softmax(-1)


def test_chinese_and_english_labels_are_drawn_without_a_missing_glyph(tmp_path):
    path = attention_heatmap(
        random_weights(), EN, ZH, tmp_path / "attention.png", "注意力：它 → it"
    )
    height, width, _ = pixels(path).shape
    assert width > 150 * 0.42 * len(ZH) and height > 150 * 0.42 * len(EN)
    assert len(np.unique(pixels(path).reshape(-1, 3), axis=0)) > 100
    assert [file.name for file in tmp_path.iterdir()] == ["attention.png"]


def test_two_chinese_characters_are_drawn_differently(tmp_path):
    first = attention_heatmap(np.ones((1, 1)), ["a"], ["我"], tmp_path / "1.png")
    second = attention_heatmap(np.ones((1, 1)), ["a"], ["爱"], tmp_path / "2.png")
    again = attention_heatmap(np.ones((1, 1)), ["a"], ["我"], tmp_path / "3.png")
    assert not np.array_equal(pixels(first), pixels(second))
    assert np.array_equal(pixels(first), pixels(again))


@pytest.mark.parametrize("text", ["注意力" * 300, "wide letters MMWW " * 9, "short", "\ud800\x00"])
def test_a_title_is_never_cut_off_at_the_edge(tmp_path, text):
    title = f"{text}\nDecoder self-attention, layer 11, head 15"
    drawn = pixels(attention_heatmap(np.ones((1, 1)), ["a"], ["b"], tmp_path / "x.png", title))
    assert (drawn[:, [0, -1]] == 255).all() and (drawn[:60] < 255).any()
    with Image.open(tmp_path / "x.png") as image:
        first, second = image.text["Title"].split("\n")
    assert second == "Decoder self-attention, layer 11, head 15"
    assert first == text or first.endswith("…") or first == "��"


def test_the_brightest_cell_is_the_largest_weight(tmp_path):
    weights = np.full((3, 4), 0.1)
    weights[2, 1] = 0.7
    image = pixels(
        attention_heatmap(weights, list("abc"), list("wxyz"), tmp_path / "max.png")
    ).astype(int)
    yellow = np.abs(image - (253, 231, 37)).sum(-1) < 6  # the last color of viridis
    dark = (
        np.abs(image - image[np.nonzero(yellow)[0][0] - 90, np.nonzero(yellow)[1][0] + 5]).sum(-1)
        < 6
    )
    rows, columns = np.nonzero(yellow[:, : int(image.shape[1] * 0.8)])  # without the colorbar
    top, left = np.nonzero(dark)[0].min(), np.nonzero(dark)[1].min()
    cell = columns.max() - columns.min() + 1
    assert (round((rows.min() - top) / cell), round((columns.min() - left) / cell)) == (2, 1)


def test_every_head_gets_a_panel(tmp_path):
    one = pixels(attention_heatmap(random_weights(1), EN, ZH, tmp_path / "1.png")).shape
    five = pixels(attention_heatmap(random_weights(5), EN, ZH, tmp_path / "5.png", "五个头")).shape
    assert five[1] > 2.5 * one[1] and five[0] > 1.7 * one[0], "three panels across, two down"


def test_unusual_tokens_are_drawn(tmp_path):
    odd = ["$x$", "_", "\n", "\t\x00", "</w>", "Ġthe", "▁的", "", "x" * 200, "�"]
    assert (
        pixels(
            attention_heatmap(
                random_weights(None, 10, 10), odd, odd, tmp_path / "odd.png", "$5 and $6"
            )
        ).shape[1]
        < 3000
    )


def test_weights_that_are_all_zero_are_drawn(tmp_path):
    assert pixels(
        attention_heatmap(np.zeros((2, 2)), ["a", "b"], ["c", "d"], tmp_path / "zero.png")
    ).size


def test_every_character_of_the_corpora_has_a_glyph(shared):
    names = ["tatoeba_zh_en/train.zh", "3am_zh_en/train.zh", "zh_hongloumeng/hongloumeng.txt"]
    text = "".join((shared / name).read_text(encoding="utf-8") for name in names)
    assert fonts_for(text)[1] == ""


def test_a_font_that_is_not_installed_has_no_characters():
    assert characters_of("No Such Font") == set()


def test_a_character_that_no_font_has_is_named_once(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        attention_heatmap(np.ones((1, 1)), ["𓀀"], ["我"], tmp_path / "hieroglyph.png")
    assert caplog.messages == [
        "figure: no font has 𓀀, they appear as boxes; "
        "install a font that has them, e.g. `apt-get install fonts-noto-cjk`"
    ]


def test_without_a_chinese_font_one_line_says_what_to_install(tmp_path):
    program = (
        "import sys; sys.modules['zhplot'] = None\n"
        "from qkv.evaluate import figures as p; p.CJK_FONTS = ()\n"
        f"p.attention_heatmap(p.np.ones((1, 2)), ['I'], ['我', '爱'], {str(tmp_path / 'x.png')!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", timeout=60
    )
    line = "figure: no font has 我爱, they appear as boxes; run `pip install zhplot`\n"
    assert (done.returncode, done.stderr) == (0, line)


def test_labels_that_do_not_fit_the_weights_are_refused(tmp_path):
    with pytest.raises(QkvError) as error:
        attention_heatmap(np.ones((2, 3, 4)), ["a"] * 3, ["b"] * 5, tmp_path / "x.png")
    assert str(error.value) == (
        "attention heatmap: weights of shape (2, 3, 4) for 3 rows and 5 columns; "
        "give weights (heads, query, key), a label for each query and key"
    )
    assert not list(tmp_path.iterdir())


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(QkvError) as error:
        attention_heatmap(np.ones((1, 1)), ["a"], ["b"], tmp_path / "file" / "x.png")
    assert str(error.value) == (
        f"{tmp_path / 'file' / 'x.png'}: cannot be written (File exists); "
        "check the folder and the free space"
    )
