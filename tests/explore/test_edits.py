"""Switching something off on the page is the same as taking it out of the weights, and leaves no trace."""

import copy
from dataclasses import replace

import pytest
import torch
from small_explorers import TEXT, small

from qkv.explore.edits import edited, read_edits
from qkv.explore.problem import Problem
from qkv.generate.decode import greedy
from qkv.model.spec import NoPositions
from qkv.model.transformer import Transformer


def logits_of(model, story):
    """What a plain pass of this model gives for the ids of a story, (length, vocab)."""
    sides = story["sides"]
    ids = {side: torch.tensor([sides[side]["ids"]]) for side in sides}
    with torch.no_grad():
        memory = model.encode(ids["source"]) if "source" in ids else None
        return (
            model.logits(model.decode(ids["target"], memory)) if "target" in ids else memory.states
        )[0]


def trace_of(model):
    modules = dict(model.named_modules())
    hooks = [path for path, one in modules.items() if one._forward_hooks or one._forward_pre_hooks]
    return (
        hooks,
        {path: id(one) for path, one in modules.items()},
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
def test_a_head_switched_off_is_its_columns_of_o_proj_zeroed(family, stack, layer, part, width):
    explorer = small(family)
    story, model = explorer.open(TEXT), explorer.subject.model
    for head in range(2 if family == "latent" else 4):
        edit = f"head:{stack}.{layer}.{part}.{head}"
        theirs = logits_of(
            without_head(model, f"{stack}.layers.{layer}.{part}.branch", head, width), story
        )
        place = len(theirs) - 1
        ours = explorer.answer(f"pass/{story['id']}/logits/{place}", {"edits": edit})
        torch.testing.assert_close(ours, theirs[place], rtol=0, atol=1e-10)
        assert not torch.allclose(
            ours, explorer.answer(f"pass/{story['id']}/logits/{place}"), atol=1e-6
        )


def test_several_heads_off_are_all_their_columns_zeroed():
    explorer = small("generator")
    story, model = explorer.open(TEXT), explorer.subject.model
    other = without_head(
        without_head(model, "decoder.layers.0.attn.branch", 1, 4),
        "decoder.layers.0.attn.branch",
        3,
        4,
    )
    ours = explorer.answer(
        f"pass/{story['id']}/logits/2", {"edits": "head:decoder.0.attn.1,head:decoder.0.attn.3"}
    )
    torch.testing.assert_close(ours, logits_of(other, story)[2], rtol=0, atol=1e-10)


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
def test_a_layer_switched_off_adds_nothing(family, edit, zeroed):
    explorer = small(family)
    story, other = explorer.open(TEXT), copy.deepcopy(explorer.subject.model)
    with torch.no_grad():
        for path in zeroed:
            for weight in other.get_submodule(f"decoder.layers.1.{path}").parameters():
                weight.zero_()
    ours = explorer.answer(f"pass/{story['id']}/logits/1", {"edits": edit})
    torch.testing.assert_close(ours, logits_of(other, story)[1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", ["generator", "translator"])
def test_positions_switched_off_are_those_of_a_model_without_positions(family):
    explorer = small(family)
    story, model = explorer.open(TEXT), explorer.subject.model
    other = Transformer(replace(model.spec, positions=NoPositions())).double().eval()
    other.load_state_dict(model.state_dict(), strict=False)
    edits = "positions:decoder" if family == "generator" else "positions:decoder,positions:encoder"
    ours = explorer.answer(f"pass/{story['id']}/logits/3", {"edits": edits})
    torch.testing.assert_close(ours, logits_of(other, story)[3], rtol=0, atol=1e-10)


def test_a_swapped_token_is_another_id():
    explorer = small("translator")
    story, model = explorer.open(TEXT), explorer.subject.model
    new = copy.deepcopy(story)
    new["sides"]["source"]["ids"][1] = 40
    ours = explorer.answer(f"pass/{story['id']}/logits/0", {"edits": "swap:source.1.40"})
    torch.testing.assert_close(ours, logits_of(model, new)[0], rtol=0, atol=1e-10)


def test_the_translation_is_said_anew_without_a_head():
    explorer = small("translator")
    subject, story = explorer.subject, explorer.open("机器学习很有趣")
    seen = set()
    for layer in range(2):
        for head in range(4):
            other = without_head(subject.model, f"decoder.layers.{layer}.cross.branch", head, 4)
            ids = torch.tensor([story["sides"]["source"]["ids"]])
            t = subject.tokenizers["target"]
            limit = min(2 * ids.shape[1] + 20, 64)
            theirs = subject.text_of(
                greedy(
                    other,
                    ids,
                    None,
                    bos_id=t.bos_id,
                    eos_id=t.eos_id,
                    pad_id=t.pad_id,
                    max_len=limit,
                )[0]
            )
            change = explorer.answer(
                f"pass/{story['id']}/change", {"edits": f"head:decoder.{layer}.cross.{head}"}
            )
            assert (
                change["after"]["said"] == theirs
                and change["before"]["said"] == story["said"]["text"]
            )
            seen.add(theirs)
    assert len(seen) > 1


def test_a_change_compares_the_same_places():
    explorer = small("generator")
    story = explorer.open(TEXT)
    change = explorer.answer(f"pass/{story['id']}/change", {"edits": "layer:decoder.0"})
    after = explorer.open(TEXT, ["layer:decoder.0"])
    assert len(change["before"]["positions"]) == len(story["sides"]["target"]["ids"])
    for place, (before, now) in enumerate(
        zip(change["before"]["positions"], change["after"]["positions"], strict=True)
    ):
        for one, id in ((before, story["id"]), (now, after["id"])):
            tops = explorer.answer(f"pass/{id}/top/{place}", {"k": "5"})["tokens"]
            assert [t["id"] for t in one["top"]] == [t["id"] for t in tops]
            assert [t["p"] for t in one["top"]] == pytest.approx([t["p"] for t in tops], abs=1e-6)


def test_an_embedders_change_is_how_far_its_vectors_turn():
    explorer = small("embedder")
    story = explorer.open(TEXT)
    other = without_head(explorer.subject.model, "encoder.layers.0.attn.branch", 1, 4)
    before, after = logits_of(explorer.subject.model, story), logits_of(other, story)
    vector = explorer.answer(f"pass/{story['id']}/change", {"edits": "head:encoder.0.attn.1"})[
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


def test_nothing_is_left_behind():
    explorer = small("translator")
    model = explorer.subject.model
    before, plain = trace_of(model), explorer.open(TEXT)
    explorer.open(TEXT, EVERYTHING)
    explorer.answer(f"pass/{plain['id']}/change", {"edits": ",".join(EVERYTHING)})
    for step in plain["steps"]:
        for tensor in step["tensors"]:
            explorer.answer(f"pass/{plain['id']}/tensor/{tensor['name']}")
    explorer.answer(f"pass/{plain['id']}/beam")
    assert trace_of(model) == before and before[0] == []


def test_nothing_is_left_behind_when_the_pass_fails():
    explorer = small("translator")
    model = explorer.subject.model
    before = trace_of(model)
    with pytest.raises(KeyboardInterrupt), edited(model, read_edits(model, EVERYTHING)):
        assert trace_of(model) != before
        raise KeyboardInterrupt
    with pytest.raises(Problem, match="cannot be swapped"):
        explorer.open(TEXT, [*EVERYTHING, "swap:source.99.1"])
    assert trace_of(model) == before


def test_an_edited_pass_can_be_looked_at_like_any_other():
    explorer = small("generator")
    story = explorer.open(TEXT, ["head:decoder.0.attn.2", "layer:decoder.1.ffn"])
    joined = explorer.answer(f"pass/{story['id']}/tensor/decoder.0.attn.joined")
    assert not joined[:, 8:12].any() and joined[:, :8].all() and joined[:, 12:].all()
    assert not explorer.answer(f"pass/{story['id']}/tensor/decoder.1.ffn.down").any()
    assert story["edits"] == ["head:decoder.0.attn.2", "layer:decoder.1.ffn"]


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
def test_what_the_model_does_not_have_is_refused_in_one_sentence(edit):
    with pytest.raises(Problem) as problem:
        small("generator").open(TEXT, [edit])
    assert (
        problem.value.status == 422
        and problem.value.en.endswith(".")
        and problem.value.zh.endswith("。")
    )
