"""Ablation equals zeroing weights, and the model is restored afterwards."""

import copy
from dataclasses import replace

import pytest
import torch
from small_explorers import TEXT, small

from qkv.explore.edits import edited, read_edits
from qkv.generate.beam import BeamSearchConfig
from qkv.generate.decode import greedy
from qkv.model.spec import NoPositions
from qkv.model.transformer import Transformer
from qkv.web.api_errors import ApiError


def logits_of(model, trace):
    """Logits of a plain forward pass on the ids of a trace, (length, vocab)."""
    sides = trace["sides"]
    ids = {side: torch.tensor([sides[side]["ids"]]) for side in sides}
    with torch.no_grad():
        memory = model.encode(ids["source"]) if "source" in ids else None
        return (
            model.logits(model.decode(ids["target"], memory)) if "target" in ids else memory.states
        )[0]


def state_of(model):
    modules = dict(model.named_modules())
    hooks = [
        path
        for path, module in modules.items()
        if module._forward_hooks or module._forward_pre_hooks
    ]
    return (
        hooks,
        {path: id(module) for path, module in modules.items()},
        {n: w.sum().item() for n, w in model.state_dict().items()},
    )


def without_head(model, path, head, width):
    """A copy whose o_proj has zeros in the columns of this head."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.get_submodule(path).o_proj.weight[:, head * width : (head + 1) * width] = 0
    return other


HEADS = [
    ("translator", "encoder", 1, "attn", 4),
    ("translator", "decoder", 0, "attn", 4),
    ("translator", "decoder", 1, "cross", 4),
    ("generator", "decoder", 0, "attn", 4),
    ("experts", "decoder", 1, "attn", 4),
    ("latent", "decoder", 0, "attn", 5),
]


@pytest.mark.parametrize(("family", "stack", "layer", "part", "width"), HEADS)
def test_an_ablated_head_equals_zeroed_columns_of_o_proj(family, stack, layer, part, width):
    explorer = small(family)
    trace, model = explorer.open(TEXT), explorer.explored.model
    for head in range(2 if family == "latent" else 4):
        edit = f"head:{stack}.{layer}.{part}.{head}"
        theirs = logits_of(
            without_head(model, f"{stack}.layers.{layer}.{part}.branch", head, width), trace
        )
        position = len(theirs) - 1
        ours = explorer.answer(f"pass/{trace['id']}/logits/{position}", {"edits": edit})
        torch.testing.assert_close(ours, theirs[position], rtol=0, atol=1e-10)
        assert not torch.allclose(
            ours, explorer.answer(f"pass/{trace['id']}/logits/{position}"), atol=1e-6
        )


def test_several_ablated_heads_equal_all_their_columns_zeroed():
    explorer = small("generator")
    trace, model = explorer.open(TEXT), explorer.explored.model
    other = without_head(
        without_head(model, "decoder.layers.0.attn.branch", 1, 4),
        "decoder.layers.0.attn.branch",
        3,
        4,
    )
    ours = explorer.answer(
        f"pass/{trace['id']}/logits/2", {"edits": "head:decoder.0.attn.1,head:decoder.0.attn.3"}
    )
    torch.testing.assert_close(ours, logits_of(other, trace)[2], rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("family", "edit", "zeroed"),
    [
        ("generator", "layer:decoder.1", ["attn.branch.o_proj", "ffn.branch.down_proj"]),
        ("generator", "layer:decoder.1.ffn", ["ffn.branch.down_proj"]),
        (
            "translator",
            "layer:decoder.1",
            ["attn.branch.o_proj", "cross.branch.o_proj", "ffn.branch.down_proj"],
        ),
        ("translator", "layer:decoder.1.cross", ["cross.branch.o_proj"]),
    ],
)
def test_an_ablated_layer_adds_nothing_to_the_residual_stream(family, edit, zeroed):
    explorer = small(family)
    trace, other = explorer.open(TEXT), copy.deepcopy(explorer.explored.model)
    with torch.no_grad():
        for path in zeroed:
            for weight in other.get_submodule(f"decoder.layers.1.{path}").parameters():
                weight.zero_()
    ours = explorer.answer(f"pass/{trace['id']}/logits/1", {"edits": edit})
    torch.testing.assert_close(ours, logits_of(other, trace)[1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", ["generator", "translator"])
def test_ablated_positions_equal_a_model_without_positions(family):
    explorer = small(family)
    trace, model = explorer.open(TEXT), explorer.explored.model
    other = Transformer(replace(model.spec, positions=NoPositions())).double().eval()
    other.load_state_dict(model.state_dict(), strict=False)
    edits = "positions:decoder" if family == "generator" else "positions:decoder,positions:encoder"
    ours = explorer.answer(f"pass/{trace['id']}/logits/3", {"edits": edits})
    torch.testing.assert_close(ours, logits_of(other, trace)[3], rtol=0, atol=1e-10)


def test_a_swapped_token_has_another_id():
    explorer = small("translator")
    trace, model = explorer.open(TEXT), explorer.explored.model
    new = copy.deepcopy(trace)
    new["sides"]["source"]["ids"][1] = 40
    ours = explorer.answer(f"pass/{trace['id']}/logits/0", {"edits": "swap:source.1.40"})
    torch.testing.assert_close(ours, logits_of(model, new)[0], rtol=0, atol=1e-10)


def test_the_translation_is_generated_again_without_the_ablated_head():
    explorer = small("translator")
    explored, trace = explorer.explored, explorer.open("机器学习很有趣")
    translations = set()
    for layer in range(2):
        for head in range(4):
            other = without_head(explored.model, f"decoder.layers.{layer}.cross.branch", head, 4)
            ids = trace["sides"]["source"]["ids"]
            t = explored.tokenizers["target"]
            config = BeamSearchConfig(t.bos_id, t.eos_id, t.pad_id)
            theirs = explored.text_of(greedy(other, [ids], config, [min(2 * len(ids) + 20, 64)])[0])
            change = explorer.answer(
                f"pass/{trace['id']}/change", {"edits": f"head:decoder.{layer}.cross.{head}"}
            )
            assert (
                change["after"]["generated"] == theirs
                and change["before"]["generated"] == trace["generated"]["text"]
            )
            translations.add(theirs)
    assert len(translations) > 1


def test_a_change_compares_the_same_positions():
    explorer = small("generator")
    trace = explorer.open(TEXT)
    change = explorer.answer(f"pass/{trace['id']}/change", {"edits": "layer:decoder.0"})
    after = explorer.open(TEXT, ["layer:decoder.0"])
    assert len(change["before"]["positions"]) == len(trace["sides"]["target"]["ids"])
    for position, (before, now) in enumerate(
        zip(change["before"]["positions"], change["after"]["positions"], strict=True)
    ):
        for summary, id in ((before, trace["id"]), (now, after["id"])):
            tops = explorer.answer(f"pass/{id}/top/{position}", {"k": "5"})["tokens"]
            assert [t["id"] for t in summary["top"]] == [t["id"] for t in tops]
            assert [t["p"] for t in summary["top"]] == pytest.approx(
                [t["p"] for t in tops], abs=1e-6
            )


def test_an_embedders_change_is_the_cosine_of_its_vectors():
    explorer = small("embedder")
    trace = explorer.open(TEXT)
    other = without_head(explorer.explored.model, "encoder.layers.0.attn.branch", 1, 4)
    before, after = logits_of(explorer.explored.model, trace), logits_of(other, trace)
    vector = explorer.answer(f"pass/{trace['id']}/change", {"edits": "head:encoder.0.attn.1"})[
        "vector"
    ]
    cosine = torch.nn.functional.cosine_similarity
    assert vector["cosine"] == pytest.approx(
        float(cosine(before.mean(0), after.mean(0), dim=0)), abs=1e-9
    )
    assert vector["tokens"] == pytest.approx(cosine(before, after, dim=1).tolist(), abs=1e-9)


EVERYTHING = [
    "head:encoder.0.attn.1",
    "head:decoder.1.cross.2",
    "layer:decoder.0",
    "positions:encoder",
    "positions:decoder",
]


def test_the_model_is_restored():
    explorer = small("translator")
    model = explorer.explored.model
    before, plain = state_of(model), explorer.open(TEXT)
    explorer.open(TEXT, EVERYTHING)
    explorer.answer(f"pass/{plain['id']}/change", {"edits": ",".join(EVERYTHING)})
    for step in plain["steps"]:
        for tensor in step["tensors"]:
            explorer.answer(f"pass/{plain['id']}/tensor/{tensor['name']}")
    explorer.answer(f"pass/{plain['id']}/beam")
    assert state_of(model) == before and before[0] == []


def test_the_model_is_restored_when_the_pass_fails():
    explorer = small("translator")
    model = explorer.explored.model
    before = state_of(model)
    with pytest.raises(KeyboardInterrupt), edited(model, read_edits(model, EVERYTHING)):
        assert state_of(model) != before
        raise KeyboardInterrupt
    with pytest.raises(ApiError, match="cannot be swapped"):
        explorer.open(TEXT, [*EVERYTHING, "swap:source.99.1"])
    assert state_of(model) == before


def test_an_edited_pass_has_a_trace_like_any_other():
    explorer = small("generator")
    trace = explorer.open(TEXT, ["head:decoder.0.attn.2", "layer:decoder.1.ffn"])
    joined = explorer.answer(f"pass/{trace['id']}/tensor/decoder.layers.0.attn.branch.o_proj.input")
    assert not joined[:, 8:12].any() and joined[:, :8].all() and joined[:, 12:].all()
    assert not explorer.answer(f"pass/{trace['id']}/tensor/decoder.layers.1.ffn.branch").any()
    assert trace["edits"] == ["head:decoder.0.attn.2", "layer:decoder.1.ffn"]


@pytest.mark.parametrize(
    "edit",
    [
        "head:decoder.0.attn.4",
        "head:decoder.2.attn.0",
        "head:encoder.0.attn.0",
        "head:decoder.0.ffn.0",
        "head:decoder.0.cross.0",
        "layer:decoder.9",
        "layer:decoder.0.norm",
        "layer:embed.0",
        "positions:encoder",
        "positions:",
        "swap:source.-1.3",
        "swap:target.0.99999999999",
        "swap:target.x.1",
        "head:decoder.0.attn.٣",
        "",
        ":",
        "head",
        "<b>",
        "head:decoder.0.attn.0.0",
    ],
)
def test_an_edit_of_a_missing_part_is_an_error_in_both_languages(edit):
    with pytest.raises(ApiError) as error:
        small("generator").open(TEXT, [edit])
    assert (
        error.value.status == 422
        and error.value.texts.en.endswith(".")
        and error.value.texts.zh.endswith("。")
    )
