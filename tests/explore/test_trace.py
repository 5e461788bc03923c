"""A trace has every step of a pass in order, with the values that the model computed."""

from dataclasses import replace

import pytest
import torch
from small_explorers import SCORES_TO_RESIDUAL, TEXT, explorer_of, small, specs, tokenizer

from qkv.checkpoint.loaded_model import PoolingConfig
from qkv.errors import QkvError
from qkv.explore.record import record
from qkv.explore.tensor_view import NOT_RECORDED
from qkv.model import spec as s
from qkv.model.positions import sinusoids
from qkv.textbook.feed_forward import silu
from qkv.web.api_errors import ApiError

FAMILIES = ["translator", "generator", "embedder", "experts", "latent", "alibi", "no residual"]


def tensors_of(trace):
    return [tensor for step in trace["steps"] for tensor in step["tensors"]]


def recorded(explorer, trace):
    """An independent recording of the output and the input of every module in one pass."""
    model, sides = explorer.explored.model, trace["sides"]
    ids = {side: torch.tensor([sides[side]["ids"]]) for side in sides}
    with torch.no_grad(), record(model, "*", "*.input") as steps:
        memory = model.encode(ids["source"]) if "source" in ids else None
        states = model.decode(ids["target"], memory) if "target" in ids else memory.states
        if explorer.explored.has_logits:
            model.logits(states)
    return steps


@pytest.mark.parametrize("family", FAMILIES)
def test_every_module_output_equals_a_recording_of_the_whole_pass(family):
    explorer = small(family)
    trace = explorer.open(TEXT)
    steps = recorded(explorer, trace)
    named = [tensor for tensor in tensors_of(trace) if tensor["path"]]
    assert len(named) > 25
    for tensor in named:
        name = tensor["name"]
        ours = explorer.answer(f"pass/{trace['id']}/tensor/{name}")
        torch.testing.assert_close(ours, steps[name][0], rtol=0, atol=1e-10, msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_name_of_a_tensor_is_the_path_of_its_module(family):
    explorer = small(family)
    modules = dict(explorer.explored.model.named_modules())
    for step in explorer.open(TEXT)["steps"]:
        names = [tensor["name"] for tensor in step["tensors"]]
        assert step["key"] == names[0] if names else step["kind"] in ("tokens", "next")
        for tensor in step["tensors"]:
            module, _, last = tensor["name"].removesuffix(".input").rpartition(".")
            recorded = module.endswith(".core") or f"{module}.{last}".lstrip(".") in modules
            assert recorded or last in (*NOT_RECORDED, "scores", "chosen", "weights"), tensor
            assert (tensor["path"] is not None) == recorded, tensor


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("decoder.0.attn.branch.core.scores", "decoder.layers.0.attn.branch.core.scores"),
        ("decoder.layers.1.ffn.branch.up_porj", "decoder.layers.1.ffn.branch.up_proj"),
        ("lm_haed", "lm_head"),
    ],
)
def test_an_unknown_name_gives_the_near_miss(name, close):
    explorer = small("generator")
    trace = explorer.open(TEXT)
    with pytest.raises(ApiError) as error:
        explorer.answer(f"pass/{trace['id']}/tensor/{name}")
    assert str(error.value) == f"'{name}' does not exist; did you mean '{close}'?"
    if name.startswith("decoder.layers."):
        with pytest.raises(QkvError) as missing:
            explorer.passes[trace["id"]].activation(name)
        assert str(missing.value) == f"{name}: was not recorded; did you mean '{close}'?"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_has_the_shape_and_axes_of_the_trace(family):
    explorer = small(family)
    trace = explorer.open(TEXT)
    for tensor in tensors_of(trace):
        ours = explorer.answer(f"pass/{trace['id']}/tensor/{tensor['name']}")
        assert list(ours.shape) == tensor["shape"] and len(tensor["axes"]) == ours.ndim, tensor
        for axis, side in tensor["labels"].items():
            assert (
                len(trace["sides"][side]["tokens"]) == tensor["shape"][tensor["axes"].index(axis)]
            ), tensor


@pytest.mark.parametrize("family", FAMILIES)
def test_every_step_has_texts_in_both_languages_and_a_unique_name(family):
    explorer = small(family)
    kinds, trace = explorer.answer("model")["kinds"], explorer.open(TEXT)
    for step in trace["steps"]:
        text = kinds[step["kind"]]
        assert (
            text["title"]["en"]
            and text["title"]["zh"]
            and text["text"]["en"]
            and text["text"]["zh"]
            and text["formula"]
        )
    keys = [step["key"] for step in trace["steps"]]
    names = [tensor["name"] for tensor in tensors_of(trace)]
    assert len(set(keys)) == len(keys) and len(set(names)) == len(names)


def kinds_in(trace, layer=0, stack=None, part=None):
    return [
        step["kind"]
        for step in trace["steps"]
        if step["layer"] == layer
        and stack in (None, step["stack"])
        and part in (None, step["part"])
    ]


def test_the_steps_of_a_decoder_are_in_order():
    trace = small("generator").open(TEXT)
    assert kinds_in(trace) == [
        "norm",
        *("q", "k", "v", "split", "rotation"),
        *SCORES_TO_RESIDUAL,
        "norm",
        "gate",
        "up",
        "activation",
        "down",
        "residual",
    ]
    assert [step["kind"] for step in trace["steps"]][:3] == ["tokens", "ids", "embedding"]
    assert [step["kind"] for step in trace["steps"]][-3:] == ["final_norm", "logits", "next"]


def test_the_steps_of_an_encoder_decoder_are_in_six_stages():
    trace = small("translator").open(TEXT)
    assert [step["kind"] for step in trace["steps"]][:5] == [
        "tokens",
        "ids",
        "embedding",
        "scaled",
        "positions",
    ]
    before = ["q", "k", "v", "split"]
    assert kinds_in(trace, stack="decoder", part="cross") == [*before, *SCORES_TO_RESIDUAL, "norm"]
    assert [stage["key"] for stage in trace["stages"]] == [
        "encode",
        "attend",
        "repeat",
        "decode",
        "cross",
        "predict",
    ]
    for stage in trace["stages"]:
        first = trace["steps"][stage["first"]]
        assert first["stage"] == stage["key"] and stage["title"]["zh"]


def test_an_encoder_ends_in_the_sentence_vector():
    explorer = small("embedder", pooling=PoolingConfig("mean", normalize=True))
    trace = explorer.open(TEXT)
    assert [step["kind"] for step in trace["steps"]][-3:] == ["vectors", "pooling", "sentence"]
    states = (
        explorer.explored.model.encode(torch.tensor([trace["sides"]["source"]["ids"]]))
        .states[0]
        .detach()
    )
    vector = explorer.answer(f"pass/{trace['id']}/tensor/sentence")
    torch.testing.assert_close(vector, states.mean(0) / states.mean(0).norm(), rtol=0, atol=1e-10)


def test_derived_tensors_follow_the_formulas():
    explorer = small("translator")
    trace, model = explorer.open(TEXT), explorer.explored.model

    def get(name):
        return explorer.answer(f"pass/{trace['id']}/tensor/{name}")

    ids = torch.tensor(trace["sides"]["source"]["ids"])
    x = model.embed.weight[ids].detach() * 4.0  # sqrt(16)
    torch.testing.assert_close(get("encoder.scaled"), x, rtol=0, atol=1e-12)
    x = x + sinusoids(torch.arange(len(ids))[None], 16)[0]
    torch.testing.assert_close(get("encoder.positions"), x, rtol=0, atol=1e-12)
    joined = (
        get("encoder.layers.0.attn.branch.core.mixed").transpose(0, 1).flatten(1)
    )  # (length, heads * d_head)
    torch.testing.assert_close(
        get("encoder.layers.0.attn.branch.o_proj.input"), joined, rtol=0, atol=1e-12
    )
    torch.testing.assert_close(
        get("encoder.layers.0.attn.norm.input"),
        x + get("encoder.layers.0.attn.branch"),
        rtol=0,
        atol=1e-10,
    )
    torch.testing.assert_close(
        get("encoder.layers.0.ffn.branch.down_proj.input"),
        get("encoder.layers.0.ffn.branch.up_proj").clamp(min=0),
        rtol=0,
        atol=0,
    )
    split = get("decoder.layers.0.cross.branch.k_proj").unflatten(-1, (4, 4)).transpose(0, 1)
    torch.testing.assert_close(
        get("decoder.layers.0.cross.branch.k_norm.input"), split, rtol=0, atol=0
    )


def test_a_gated_activation_is_the_activated_gate_times_up():
    explorer = small("generator")
    this = f"pass/{explorer.open(TEXT)['id']}/tensor/decoder.layers.1.ffn.branch"
    gate, up, activation = (
        explorer.answer(f"{this}.{kind}") for kind in ("gate_proj", "up_proj", "down_proj.input")
    )
    torch.testing.assert_close(activation, silu(gate) * up, rtol=0, atol=1e-12)


def test_the_selected_experts_have_the_highest_scores():
    explorer = small("experts")
    this = f"pass/{explorer.open(TEXT)['id']}/tensor/decoder.layers.0.ffn.branch.router"
    scores, chosen, weights = (
        explorer.answer(f"{this}.{kind}") for kind in ("scores", "chosen", "weights")
    )
    assert torch.equal(chosen.sort().values, scores.topk(2).indices.sort().values)
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(weights), dtype=torch.float64))


def test_tokens_show_characters_and_mark_their_parts():
    side = small("generator").open("今天天气真好龘😀")["sides"]["target"]
    assert "\ufffd" not in "".join(side["tokens"])
    assert any(side["partial"]) and not all(side["partial"])
    for token, partial in zip(side["tokens"], side["partial"], strict=True):
        assert partial == ("/" in token), token
    assert (
        "".join(word["text"] for word in side["words"] if not word["text"].startswith("<"))
        == "今天天气真好龘😀"
    )
    assert sorted(token for word in side["words"] for token in word["tokens"]) == list(
        range(len(side["tokens"]))
    )


def test_a_range_of_rows_or_one_head_is_a_slice_of_the_tensor():
    explorer = small("generator")
    this = f"pass/{explorer.open(TEXT)['id']}/tensor"
    whole = explorer.answer(f"{this}/decoder.layers.0.attn.branch.core.scores")
    assert torch.equal(
        explorer.answer(f"{this}/decoder.layers.0.attn.branch.core.scores", {"index": "2"}),
        whole[2],
    )
    assert torch.equal(
        explorer.answer(
            f"{this}/decoder.layers.0.attn.branch.core.scores", {"index": "2", "rows": "1:3"}
        ),
        whole[2, 1:3],
    )
    logits = explorer.answer(f"{this}/lm_head")
    torch.testing.assert_close(
        explorer.answer(f"{this}/lm_head", {"rows": "2:4"}), logits[2:4], rtol=0, atol=1e-12
    )
    torch.testing.assert_close(
        explorer.answer(f"{this}/lm_head", {"index": "3"}), logits[3], rtol=0, atol=1e-12
    )


def test_the_same_text_has_the_same_id_and_runs_once():
    explorer = small("generator")
    first = explorer.open(TEXT)
    kept = explorer.passes[first["id"]]
    assert explorer.open(TEXT) == first and explorer.passes[first["id"]] is kept
    assert explorer.open(TEXT + "!")["id"] != first["id"]
    assert explorer.answer(f"pass/{first['id']}") == first


def test_only_the_last_passes_are_cached():
    explorer = small("generator")
    ids = [explorer.open(f"text {n}")["id"] for n in range(9)]
    assert (
        len(explorer.passes) == 6 and ids[-1] in explorer.passes and ids[0] not in explorer.passes
    )


def test_the_tokens_of_a_translation_are_greedy():
    explorer = small("translator")
    trace = explorer.open("机器学习很有趣")
    target = trace["sides"]["target"]
    assert target["ids"][1:] == target["predicted_ids"][: len(target["ids"]) - 1]
    assert target["ids"][0] == explorer.explored.tokenizers["target"].bos_id
    assert trace["generated"]["text"] == explorer.explored.tokenizers["target"].decode(
        explorer.passes[trace["id"]].generated
    )


RMS = s.Norm("rms", "pre")
OTHERS = {
    "recurrent": s.Stack((s.Layer(s.Recurrent("gru"), s.Dense(20), RMS),), causal=True),
    "convolution": s.Stack((s.Layer(s.Convolution(3), s.Dense(20), RMS),), causal=True),
    "token mlp": s.Stack((s.Layer(s.TokenMlp(), s.Dense(20), RMS),), causal=True),
    "pooling": s.Stack(
        (s.Layer(s.Pooling(3), s.Dense(20), RMS), s.Layer(s.Attention(4, 1, 4), s.Dense(20), RMS)),
        causal=True,
    ),
    "window": s.Stack(
        (s.Layer(s.Attention(4, 4, 4, window=2), s.Gated(20), s.Norm("batch", "pre")),),
        causal=True,
        final_norm=True,
    ),
    "latent": s.Stack(
        (s.Layer(s.LatentAttention(2, 6, 4, 4, 5, q_lora_rank=6), s.Gated(20), RMS),), causal=True
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_mixers_have_traces_of_their_steps(name):
    tokens = tokenizer()
    positions = (
        s.NoPositions() if name == "pooling" else s.Learned() if name == "recurrent" else s.Rotary()
    )
    explorer = explorer_of(
        s.Spec(tokens.vocab_size, 16, decoder=OTHERS[name], positions=positions, max_len=64), tokens
    )
    trace = explorer.open(TEXT)
    steps = recorded(explorer, trace)
    for tensor in tensors_of(trace):
        ours = explorer.answer(f"pass/{trace['id']}/tensor/{tensor['name']}")
        assert list(ours.shape) == tensor["shape"]
        if tensor["path"]:
            torch.testing.assert_close(ours, steps[tensor["path"]][0], rtol=0, atol=1e-10)
    for what in ("top/0", "logit_lens/0", "generate", "beam", "projection/target"):
        assert explorer.answer(f"pass/{trace['id']}/{what}")


def test_a_non_causal_decoder_has_a_trace():
    tokens = tokenizer()
    spec = specs(tokens.vocab_size)["translator"]
    explorer = explorer_of(replace(spec, decoder=replace(spec.decoder, causal=False)), tokens)
    trace = explorer.open(TEXT)
    steps = recorded(explorer, trace)
    ours = explorer.answer(f"pass/{trace['id']}/tensor/decoder.layers.1.attn.branch.core.weights")
    torch.testing.assert_close(
        ours, steps["decoder.layers.1.attn.branch.core.weights"][0], rtol=0, atol=1e-10
    )
    assert ours.triu(1).any()


def test_a_masked_language_model_has_logits_at_each_position():
    tokens = tokenizer()
    spec = replace(specs(tokens.vocab_size)["embedder"], head=s.MaskedHead())
    explorer = explorer_of(spec, tokens)
    trace = explorer.open(TEXT)
    model, ids = explorer.explored.model, torch.tensor([trace["sides"]["source"]["ids"]])
    theirs = model.logits(model.encode(ids).states)[0].detach()
    assert trace["positions"] == ids.shape[1]
    torch.testing.assert_close(
        explorer.answer(f"pass/{trace['id']}/logits/2"), theirs[2], rtol=0, atol=1e-10
    )


def test_examples_do_not_differ_only_in_case():
    examples = small("translator").answer("model")["examples"]
    plain = [text.lower().rstrip(".") for text in examples]
    assert (
        len(plain) == len(set(plain))
        and "a little girl climbs into a house" in plain
        and "机器学习很有趣" in plain
    )
