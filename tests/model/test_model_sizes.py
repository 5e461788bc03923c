"""Published parameter counts, exactly, of models built on the meta device (no memory is taken)."""

import pytest
import torch

from qkv.model.presets import PRESETS, preset
from qkv.model.transformer import Transformer

PUBLISHED = {
    "gpt2": 124_439_808, "bert": 109_482_240, "minilm": 22_713_216, "llama2-7b": 6_738_415_616,
    "llama3-8b": 8_030_261_248, "mixtral": 46_702_792_704,
}  # fmt: skip


def size(name: str) -> int:
    with torch.device("meta"):
        model = Transformer(preset(name))
    return sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items(), ids=PUBLISHED.keys())
def test_a_preset_has_exactly_its_published_size(name, published):
    assert size(name) == published


@pytest.mark.parametrize(("name", "published"), [("paper-base", 65e6), ("paper-big", 213e6)])
def test_the_papers_sizes_are_met_within_four_percent(name, published):
    assert size(name) == pytest.approx(published, rel=0.04)


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in PUBLISHED])
def test_every_other_preset_can_be_built(name):
    assert size(name) > 0
