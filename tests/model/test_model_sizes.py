"""Parameter counts of presets equal the published ones (on the meta device)."""

import pytest
import torch

from qkv.model.presets import PRESETS, preset
from qkv.model.transformer import Transformer

PUBLISHED = {
    "gpt2": 124_439_808,
    "bert": 109_482_240,
    "minilm": 22_713_216,
    "llama2-7b": 6_738_415_616,
    "llama3-8b": 8_030_261_248,
    "mixtral": 46_702_792_704,
}


def size(name: str) -> int:
    with torch.device("meta"):
        model = Transformer(preset(name))
    return sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items(), ids=PUBLISHED.keys())
def test_a_preset_has_exactly_its_published_size(name, published):
    assert size(name) == published


@pytest.mark.parametrize(("name", "published"), [("paper-base", 65e6), ("paper-big", 213e6)])
def test_the_papers_sizes_differ_by_less_than_four_percent(name, published):
    assert size(name) == pytest.approx(published, rel=0.04)


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("lm-")])
def test_an_lm_preset_has_the_size_in_its_name(name):
    assert size(name) == pytest.approx(
        float(name.removeprefix("lm-").removesuffix("m")) * 1e6, rel=0.08
    )


def test_sizes_equal_those_of_transformers():
    """Classes of transformers, on the meta device too."""
    import transformers as hf

    qwen = hf.Qwen3Config(
        vocab_size=151_936,
        hidden_size=1_024,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=3_072,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        theirs = {
            "mistral": hf.MistralForCausalLM(hf.MistralConfig()),
            "gpt2": hf.GPT2LMHeadModel(hf.GPT2Config()),
            "bert": hf.BertModel(hf.BertConfig()),
            "qwen": hf.Qwen3ForCausalLM(qwen),
        }
    assert {name: model.num_parameters() for name, model in theirs.items()} == {
        name: size(name) for name in theirs
    }


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in PUBLISHED])
def test_every_other_preset_can_be_built(name):
    assert size(name) > 0
