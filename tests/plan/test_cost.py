"""Costs worked out on paper equal those of the built model: weights, torch's own FLOP counter, a real cache."""

import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from qkv.errors import QkvError
from qkv.model import spec as s
from qkv.model.presets import PRESETS, decoder_only, encoder_decoder, encoder_only, preset
from qkv.model.transformer import Transformer
from qkv.plan import cost, rate
from qkv.plan.formulas import beside_the_notes
from qkv.plan.pieces import Load
from qkv.plan.rate import measured_gflops
from qkv.train.optim import make_optimizers
from qkv.train.recipe import Recipe

PUBLISHED = {
    "gpt2": 124_439_808,
    "bert": 109_482_240,
    "llama2-7b": 6_738_415_616,
    "llama3-8b": 8_030_261_248,
    "mixtral": 46_702_792_704,
    "minilm": 22_713_216,
}
ODD = s.Heads(4, 2, 10, window=5, bias=True, qk_norm=True)
LATENT = s.Latent(n_heads=3, kv_rank=12, d_nope=8, d_rope=4, d_value=6, q_rank=10)
EXPERTS = s.Experts(4, 2, s.Gated(20), shared=s.Dense(24, bias=True), balance_bias=True)
TINY: dict[str, s.Spec] = {
    "translator": replace(
        encoder_decoder(50, 32, 2, n_heads=4, d_ff=48, dropout=0.0), source_vocab_size=40
    ),
    "gpt": replace(
        preset("gpt2"),
        vocab_size=50,
        d_model=32,
        max_len=32,
        dropout=0.0,
        decoder=s.Stack(
            (
                s.Layer(
                    s.Heads(4, 4, 8, bias=True, out_bias=True),
                    s.Dense(64, "gelu", bias=True),
                    repeat=2,
                ),
            ),
            "past",
            True,
        ),
    ),
    "grouped": decoder_only(50, 32, 2, s.Heads(4, 2, 8), s.Gated(40)),
    "wide heads": decoder_only(50, 32, 2, ODD, s.Gated(40)),
    "latent": decoder_only(50, 32, 2, LATENT, s.Gated(40)),
    "bert": replace(encoder_only(50, 32, 2, n_heads=4, d_ff=64), max_len=32, dropout=0.0),
    "masked": replace(
        encoder_only(50, 32, 2, n_heads=4, d_ff=64), max_len=32, dropout=0.0, head=s.MaskedHead()
    ),
}
MIXERS: list[s.Mixer] = [
    s.Convolution(3),
    s.TokenMlp(),
    s.Pooling(3),
    s.Recurrent("gru"),
    s.Recurrent("lstm"),
]


def products(b: int, h: int, q: int, k: int, *widths: int) -> int:
    """One product of q x k pairs for each of the widths."""
    return sum(2 * b * h * q * k * width for width in widths)


def fused_forward(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return products(*q[:3], k[2], q[3], v[3])


def fused_backward(_: Any, q: Any, k: Any, v: Any, *__: Any, **___: Any) -> int:
    """Scores again, then the gradients of v and of the weights, of q and of k: five products for forward's two."""
    return products(*q[:3], k[2], q[3], v[3], v[3], q[3], q[3])


# torch's counter does not know the fused attention of CPUs.
aten = torch.ops.aten
FUSED = {
    aten._scaled_dot_product_flash_attention_for_cpu: fused_forward,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: fused_backward,
}


def build(spec: s.Spec) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(spec)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.1)
    return model


def run(model: Transformer, load: Load) -> torch.Tensor:
    """A whole pass, from ids to the head's answer."""
    torch.manual_seed(1)
    spec, memory = model.spec, None
    if load.source:
        memory = model.encode(
            torch.randint(0, spec.source_vocab_size or spec.vocab_size, (load.batch, load.source))
        )
    if load.target:
        return model.logits(
            model.decode(torch.randint(0, spec.vocab_size, (load.batch, load.target)), memory)
        )
    assert memory is not None
    return model.logits(memory.states)


def counted(action: Callable[[], object]) -> FlopCounterMode:
    counter = FlopCounterMode(display=False, custom_mapping=FUSED)
    with counter:
        action()
    return counter


def counted_parts(model: Transformer, load: Load) -> dict[str, int]:
    """What torch counts in each part of the model, by module names."""
    counts = counted(lambda: run(model, load)).get_flop_counts()
    wanted = {
        "all attention": r"\.attn$",
        "scores": r"\.attn\.branch\.core$",
        "all cross": r"\.cross$",
        "cross_scores": r"\.cross\.branch\.core$",
        "feed_forward": r"\.ffn$",
        "head": r"^(LmHead|MaskedHead|Pooler)$",
    }
    found = {
        part: sum(sum(ops.values()) for name, ops in counts.items() if re.search(pattern, name))
        for part, pattern in wanted.items()
    }
    found["attention"] = found.pop("all attention") - found["scores"]
    found["cross"] = found.pop("all cross") - found["cross_scores"]
    return {part: number for part, number in found.items() if number}


def a_load(spec: s.Spec) -> Load:
    return cost.load_of(spec, batch=3, length=7, source_length=11)


# ── Parameters ───────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_come_out_exactly(name: str) -> None:
    assert sum(cost.parameters(preset(name)).values()) == PUBLISHED[name]


@pytest.mark.parametrize(("name", "published"), [("paper-base", 65e6), ("paper-big", 213e6)])
def test_the_papers_sizes_come_out_within_4_percent(name: str, published: float) -> None:
    assert sum(cost.parameters(preset(name)).values()) == pytest.approx(published, rel=0.04)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_counted_on_paper_has_as_many_weights_as_built(name: str) -> None:
    with torch.device("meta"):
        model = Transformer(preset(name))
    assert sum(cost.parameters(preset(name)).values()) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("sees", ["all", "past"])
@pytest.mark.parametrize("norm", ["layer", "rms", "batch"])
@pytest.mark.parametrize("mixer", [*MIXERS, ODD, LATENT], ids=lambda mixer: type(mixer).__name__)
def test_every_choice_of_a_layer_is_counted_as_built(mixer: s.Mixer, norm: Any, sees: Any) -> None:
    stack = s.Stack(
        (s.Layer(mixer, EXPERTS, s.Norm(norm)),), sees, final_norm=True, embed_norm=True
    )
    spec = s.Spec(30, 32, decoder=stack, head=s.LmHead(tied=False, bias=True), max_len=16)
    assert sum(cost.parameters(spec).values()) == sum(
        p.numel() for p in Transformer(spec).parameters()
    )


@pytest.mark.parametrize("name", TINY)
def test_parts_hold_the_weights_that_their_names_say(name: str) -> None:
    weights = {k: v.numel() for k, v in Transformer(TINY[name]).named_parameters()}
    norms = sum(n for k, n in weights.items() if "norm" in k)
    feed_forward = sum(n for k, n in weights.items() if ".ffn.branch." in k)
    attention = sum(
        n
        for k, n in weights.items()
        if ".attn.branch." in k and "norm" not in k and ".q_proj.1." not in k
    )
    head = sum(n for k, n in weights.items() if k.startswith("lm_head") and "norm" not in k)
    counts = cost.parameters(TINY[name])
    between = sum(
        n for k, n in weights.items() if ".q_proj.1." in k
    )  # the norm inside a two-step query
    assert counts["norms"] == norms + between
    assert (counts["feed_forward"], counts["attention"], counts.get("head", 0)) == (
        feed_forward,
        attention,
        head,
    )


def test_mixtral_uses_12_9_billion_of_its_parameters_for_a_token() -> None:
    assert sum(cost.active_parameters(preset("mixtral")).values()) == pytest.approx(
        12.9e9, rel=0.005
    )


def test_active_parameters_are_those_with_a_gradient_from_one_token() -> None:
    """One token lights n_active experts and the shared one; of the table we count every row."""
    spec = decoder_only(50, 32, 2, s.Heads(4, 2, 8), EXPERTS)
    model = build(spec)
    run(model, Load(1, 0, 1)).sum().backward()
    active = 0
    for name, weight in model.named_parameters():
        met = (
            weight.grad.flatten(1).any(1).sum() / len(weight)
            if ".experts." in name and weight.grad is not None
            else 1
        )
        active += int(met * weight.numel())
    assert sum(cost.active_parameters(spec).values()) == active


# ── FLOPs ────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("name", TINY)
def test_flops_by_part_equal_what_torch_counts(name: str) -> None:
    load = a_load(TINY[name])
    assert cost.flops(TINY[name], load) == counted_parts(build(TINY[name]), load)


@pytest.mark.parametrize(
    "mixer", MIXERS[:4], ids=lambda mixer: type(mixer).__name__
)  # torch does not see in LSTMs
@pytest.mark.parametrize("sees", ["all", "past"])
def test_flops_of_other_mixers_equal_what_torch_counts(mixer: s.Mixer, sees: Any) -> None:
    spec = s.Spec(30, 32, decoder=s.Stack((s.Layer(mixer, s.Dense(40)),), sees), max_len=16)
    ours, theirs = cost.flops(spec, a_load(spec)), counted_parts(build(spec), a_load(spec))
    together = [sum(one.pop(part, 0) for part in ("attention", "scores")) for one in (ours, theirs)]
    assert together[0] == together[1] and ours == theirs


def test_flops_of_experts_are_exact_when_all_are_asked_alike() -> None:
    spec = decoder_only(50, 32, 2, s.Heads(4, 2, 8), replace(EXPERTS, n_active=4))
    assert cost.flops(spec, a_load(spec)) == counted_parts(build(spec), a_load(spec))


def test_flops_of_experts_are_those_asked_for_and_padding_seats_come_on_top() -> None:
    """The batched product gives every expert as many seats as the busiest needs; empty seats are work, not cost."""
    spec = decoder_only(50, 32, 2, s.Heads(4, 2, 8), EXPERTS)
    model, load, empty = build(spec), a_load(spec), []
    for block in model.decoder.layers:  # type: ignore[union-attr]
        block.ffn.branch.experts.register_forward_hook(  # type: ignore[union-attr]
            lambda _, args, __: empty.append(
                args[0].shape[0] * args[0].shape[1] - load.tokens * EXPERTS.n_active
            )
        )
    theirs, ours = counted_parts(model, load), cost.flops(spec, load)
    assert len(empty) == 2 and sum(empty) > 0
    assert theirs["feed_forward"] - ours["feed_forward"] == sum(empty) * 2 * 3 * 32 * 20


@pytest.mark.parametrize("name", TINY)
def test_training_is_three_forwards_and_the_scores_that_the_fused_kernel_works_out_again(
    name: str,
) -> None:
    """Latent attention runs unfused here and recomputes nothing; fused backward repeats q k^T: a half of the scores."""
    spec, load = TINY[name], a_load(TINY[name])
    forward = cost.flops(spec, load)
    again = 0 if name == "latent" else (forward["scores"] + forward.get("cross_scores", 0)) // 2
    total = counted(lambda: run(build(spec), load).square().sum().backward()).get_total_flops()
    assert total == cost.training_flops(spec, load) + again


def test_a_pass_too_long_for_the_table_of_places_is_refused() -> None:
    with pytest.raises(
        QkvError, match=r"^length: 1025 tokens are too long; this model reads at most 1024$"
    ):
        cost.load_of(preset("gpt2"), length=1_025)


# ── Bytes ────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("name", ["translator", "gpt", "grouped", "wide heads", "latent"])
def test_cache_bytes_equal_what_a_real_cache_holds(name: str) -> None:
    spec, load = TINY[name], a_load(TINY[name])
    model, cache = build(spec).eval(), build(spec).new_cache()
    memory = (
        model.encode(torch.ones(load.batch, load.source, dtype=torch.long)) if load.source else None
    )
    for _ in range(load.target):
        model.decode(torch.ones(load.batch, 1, dtype=torch.long), memory, cache)
    cross = sum(one.nbytes for layer in cache.layers for one in layer.cross.kept or ())
    expected = cost.memory(spec, load)
    assert expected.cache_per_token * load.batch * load.target == cache.bytes
    assert expected.cache == cache.bytes + cross and (cross > 0) == (name == "translator")


def test_cache_figures_of_known_models() -> None:
    """Llama-2-7B: half a megabyte a token in 16 bits; DeepSeek-V2-Lite: 27 layers of 512 + 64 numbers."""
    llama, deepseek = preset("llama2-7b"), preset("deepseek")
    assert cost.memory(llama, cost.load_of(llama), "bfloat16").cache_per_token == 524_288
    assert cost.cached_numbers(deepseek) == 27 * 576
    assert cost.window_numbers(preset("mistral"), 32_768) == 4_096 * cost.cached_numbers(
        preset("mistral")
    )


@pytest.mark.parametrize("name", TINY)
def test_optimiser_bytes_equal_torchs_moments(name: str) -> None:
    spec = TINY[name]
    model = build(spec)
    moments = 2 * sum(p.nbytes for p in model.parameters())
    if name == "gpt":  # as torch has it
        optimiser = torch.optim.Adam(model.parameters())
        run(model, a_load(spec)).sum().backward()
        optimiser.step()
        assert moments == sum(
            one.nbytes
            for state in optimiser.state.values()
            for key, one in state.items()
            if key != "step"
        )
    memory = cost.memory(spec, a_load(spec))
    assert memory.adam == moments
    assert memory.weights == memory.gradients == sum(p.nbytes for p in model.parameters())
    muon, _ = make_optimizers(model, Recipe(optimizer="muon"))
    one_moment = sum(p.nbytes for group in muon.param_groups for p in group["params"])
    assert memory.muon == moments - one_moment


def saved_bytes(model: Transformer, load: Load) -> int:
    """What autograd keeps in a training pass: every storage once, weights left out."""
    known = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}  # holding them, so that no address is used twice

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known and tensor.shape != model.embed.weight.shape:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        ids = torch.ones(load.batch, load.target or load.source, dtype=torch.long)
        memory = (
            model.encode(torch.ones(load.batch, load.source, dtype=torch.long))
            if load.source
            else None
        )
        loss = model.loss(model.decode(ids, memory), ids)
    assert loss.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("name", ["translator", "gpt", "grouped", "latent", "experts", "dropout"])
def test_the_estimate_of_activations_is_near_what_autograd_keeps(name: str) -> None:
    extra = {
        "experts": decoder_only(50, 32, 2, s.Heads(4, 2, 8), EXPERTS),
        "dropout": replace(TINY["gpt"], dropout=0.1),
    }
    spec = (TINY | extra)[name]
    load = cost.load_of(spec, batch=8, length=24)
    ratio = cost.memory(spec, load).activations / saved_bytes(build(spec).train(), load)
    assert 0.67 < ratio < 1.5


# ── Formulas and time ────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("name", [*PRESETS, *TINY])
def test_the_reasons_add_up_to_the_whole_difference(name: str) -> None:
    spec = TINY[name] if name in TINY else preset(name)
    for one in beside_the_notes(spec, cost.load_of(spec, 2, 16, 24), tokens=1_000):
        assert one.by_formula + sum(reason.difference for reason in one.why) == pytest.approx(
            one.exact, rel=1e-12
        )


def test_the_formulas_are_exact_for_the_model_they_describe() -> None:
    """d_ff = 4 d, plain heads, no biases, no head: then only the norms differ."""
    layer = s.Layer(s.Heads(4, 4, 8), s.Dense(128), repeat=3)
    spec = s.Spec(50, 32, decoder=s.Stack((layer,), "past"), head=None)
    load = cost.load_of(spec, batch=2, length=16)
    comparisons = {one.formula: one for one in beside_the_notes(spec, load)}
    assert comparisons["12 l d²"].by_formula == 12 * 3 * 32**2
    assert comparisons["12 l d²"].exact - comparisons["12 l d²"].by_formula == 3 * 2 * 2 * 32
    assert comparisons["12 l d² + V d"].by_formula == 12 * 3 * 32**2 + 50 * 32
    forward = comparisons["l (24 b s d² + 4 b s² d)"]
    assert (
        forward.exact == forward.by_formula == 3 * (24 * 2 * 16 * 32**2 + 4 * 2 * 16**2 * 32)
        and not forward.why
    )
    token = comparisons["C = 6 N D"]  # 6 N (1 + s / 6 d), as the notes derive it
    assert token.exact == pytest.approx(token.by_formula * (1 + 16 / (6 * 32)))
    assert comparisons["8 d² / 12 d²"].exact == pytest.approx(8 * 32**2 / (12 * 32**2 + 2 * 2 * 32))
    assert comparisons["2 l d x 4"].exact == comparisons["2 l d x 4"].by_formula == 2 * 3 * 32 * 4


def test_the_rate_is_that_of_the_best_product_within_the_time(monkeypatch: Any) -> None:
    """By a clock of the test: products of 0.3, 0.1 and 0.2 s; the third begins within half a second, a fourth would not."""
    times = iter([0.0, 0.0, 0.3, 0.3, 0.4, 0.4, 0.6, 0.6])
    monkeypatch.setattr(rate, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    assert measured_gflops(seconds=0.5, size=64) == pytest.approx(2 * 64**3 / 0.1 / 1e9)
    assert next(times, None) is None


def test_one_product_is_measured_even_when_it_outlasts_the_time(monkeypatch: Any) -> None:
    times = iter([0.0, 3.0, 7.0, 7.0])
    monkeypatch.setattr(rate, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    assert measured_gflops(seconds=0.5, size=64) == pytest.approx(2 * 64**3 / 4.0 / 1e9)


def test_hours_are_flops_divided_by_the_rate() -> None:
    spec = TINY["translator"]
    load = a_load(spec)  # 3 x (7 + 11) tokens
    assert cost.hours(spec, load, 540, 2.0) == pytest.approx(
        10 * cost.training_flops(spec, load) / 2e9 / 3_600
    )
