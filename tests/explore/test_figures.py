"""Figures of attention weights: of a recording, and of a pass of any family."""

from io import BytesIO

import pytest
import torch
from PIL import Image
from small_explorers import TEXT, small

from qkv.errors import QkvError
from qkv.evaluate.figures import attention_heatmap
from qkv.explore.figures import draw_attention
from qkv.explore.record import record


def recorded(*patterns):
    model = small("generator").explored.model
    with torch.no_grad(), record(model, *patterns) as steps:
        model.decode(torch.tensor([[5, 6, 7]]))
    return steps


def test_a_recording_shows_the_last_weights_as_a_png(tmp_path):
    steps = recorded("decoder.layers.*.attn.branch.core.weights")
    picture = steps.show(rows=["a", "好", "c"], columns=["a", "好", "c"])
    with Image.open(BytesIO(picture._repr_png_())) as image:
        assert image.format == "PNG" and min(image.size) > 200
    assert picture.save(tmp_path / "x.png").read_bytes() == picture.png
    other = steps.show(path="decoder.layers.0.attn.branch.core.weights")
    assert other.png != picture.png


def test_showing_a_recording_without_weights_names_the_pattern_to_record():
    with pytest.raises(QkvError) as error:
        recorded("embed").show()
    assert (
        str(error.value)
        == 'show: no attention weights were recorded; record(model, "*.core.weights")'
    )


@pytest.mark.parametrize("family", ["translator", "generator", "embedder"])
def test_every_attention_of_a_pass_can_be_drawn(family, tmp_path):
    explorer = small(family, 20)
    trace = explorer.open(TEXT)
    for kind in trace["attention"]:
        path = draw_attention(explorer.passes[trace["id"]], tmp_path / "x.png", kind["name"], 0)
        with Image.open(path) as image:
            assert image.format == "PNG"
            assert image.text["Title"] == f"{TEXT}\n{kind['title']['en']}, layer 0"


def test_one_head_is_drawn_alone_and_named_in_the_title(tmp_path):
    explorer = small("generator", 20)
    pass_ = explorer.passes[explorer.open(TEXT)["id"]]
    pictures = []
    for head in (0, 3):
        path = draw_attention(pass_, tmp_path / f"{head}.png", "decoder", 1, head)
        with Image.open(path) as image:
            assert image.text["Title"] == f"{TEXT}\nDecoder self-attention, layer 1, head {head}"
        tokens = pass_.explored.display_tokens(pass_.ids["target"], "target")
        weights = pass_.weights("decoder.layers.1.attn.branch.core")[head]
        expected = attention_heatmap(
            weights, tokens, tokens, tmp_path / "e.png", image.text["Title"]
        )
        assert path.read_bytes() == expected.read_bytes()
        pictures.append(path.read_bytes())
    assert pictures[0] != pictures[1]
