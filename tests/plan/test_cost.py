"""Costs computed from the spec equal those of the built model, by torch's FLOP counter too."""

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
from qkv.plan.formulas import compare_formulas
from qkv.plan.pieces import Workload
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
WIDE_HEADS = s.Attention(4, 2, 10, window=5, bias=True, qk_norm=True)
LATENT = s.LatentAttention(
    n_heads=3, kv_lora_rank=12, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6, q_lora_rank=10
)
EXPERTS = s.MixtureOfExperts(
    4, 2, s.Gated(20), shared_expert=s.Dense(24, bias=True), score_correction_bias=True
)
TINY: dict[str, s.Spec] = {
    "encoder-decoder": replace(
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
                    s.Attention(4, 4, 8, bias=True, out_bias=True),
                    s.Dense(64, "gelu", bias=True),
                    repeat=2,
                ),
            ),
            causal=True,
            final_norm=True,
        ),
    ),
    "grouped": decoder_only(50, 32, 2, s.Attention(4, 2, 8), s.Gated(40)),
    "wide heads": decoder_only(50, 32, 2, WIDE_HEADS, s.Gated(40)),
    "latent": decoder_only(50, 32, 2, LATENT, s.Gated(40)),
    "no feed-forward": decoder_only(50, 32, 2, s.Attention(4, 2, 8), None),
    "bert": replace(encoder_only(50, 32, 2, n_heads=4, d_ff=64), max_len=32, dropout=0.0),
    "masked": replace(
        encoder_only(50, 32, 2, n_heads=4, d_ff=64), max_len=32, dropout=0.0, head=s.MaskedHead()
    ),
}
MIXERS: list[s.Mixer] = [
    s.Convolution(3, dilation=2),
    s.TokenMlp(),
    s.Pooling(3),
    s.Recurrent("gru"),
    s.Recurrent("lstm"),
]


def products(b: int, h: int, q: int, k: int, *widths: int) -> int:
    """FLOPs of one product of q x k pairs for each width."""
    return sum(2 * b * h * q * k * width for width in widths)


def fused_forward(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return products(*q[:3], k[2], q[3], v[3])


def fused_backward(_: Any, q: Any, k: Any, v: Any, *__: Any, **___: Any) -> int:
    """Five products: recomputed scores, gradients of v, weights, q and k."""
    return products(*q[:3], k[2], q[3], v[3], v[3], q[3], q[3])


# torch's counter does not count the fused attention of CPUs.
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


def run(model: Transformer, workload: Workload) -> torch.Tensor:
    """A full pass, from ids to the output of the head."""
    torch.manual_seed(1)
    spec, memory = model.spec, None
    if workload.source:
        memory = model.encode(
            torch.randint(
                0, spec.source_vocab_size or spec.vocab_size, (workload.batch, workload.source)
            )
        )
    if workload.target:
        return model.logits(
            model.decode(
                torch.randint(0, spec.vocab_size, (workload.batch, workload.target)), memory
            )
        )
    assert memory is not None
    return model.logits(memory.states)


def counted(action: Callable[[], object]) -> FlopCounterMode:
    counter = FlopCounterMode(display=False, custom_mapping=FUSED)
    with counter:
        action()
    return counter


def counted_parts(model: Transformer, workload: Workload) -> dict[str, int]:
    """The FLOPs that torch counts in each part of the model, by module names."""
    counts = counted(lambda: run(model, workload)).get_flop_counts()
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


def small_workload(spec: s.Spec) -> Workload:
    return cost.make_workload(spec, batch=3, seq_len=7, source_len=11)


# ── Parameters ────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_equal_published_sizes(name: str) -> None:
    assert sum(cost.parameters(preset(name)).values()) == PUBLISHED[name]


@pytest.mark.parametrize(("name", "published"), [("paper-base", 65e6), ("paper-big", 213e6)])
def test_parameters_are_within_4_percent_of_the_papers_sizes(name: str, published: float) -> None:
    assert sum(cost.parameters(preset(name)).values()) == pytest.approx(published, rel=0.04)


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_of_a_preset_equal_those_of_the_built_model(name: str) -> None:
    with torch.device("meta"):
        model = Transformer(preset(name))
    assert sum(cost.parameters(preset(name)).values()) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("norm", ["layer", "rms", "batch"])
@pytest.mark.parametrize(
    "mixer", [*MIXERS, WIDE_HEADS, LATENT], ids=lambda mixer: type(mixer).__name__
)
def test_parameters_of_every_layer_type_equal_those_of_the_built_model(
    mixer: s.Mixer, norm: Any, causal: bool
) -> None:
    stack = s.Stack(
        (s.Layer(mixer, EXPERTS, s.Norm(norm)),), causal, final_norm=True, embed_norm=True
    )
    spec = s.Spec(30, 32, decoder=stack, head=s.LmHead(tied=False, bias=True), max_len=16)
    assert sum(cost.parameters(spec).values()) == sum(
        p.numel() for p in Transformer(spec).parameters()
    )


@pytest.mark.parametrize("name", TINY)
def test_parameters_by_part_equal_those_of_the_modules(name: str) -> None:
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
    # the norm of a low-rank query projection
    between = sum(n for k, n in weights.items() if ".q_proj.1." in k)
    assert counts["norms"] == norms + between
    assert (counts.get("feed_forward", 0), counts["attention"], counts.get("head", 0)) == (
        feed_forward,
        attention,
        head,
    )


def test_mixtral_uses_12_9_billion_of_its_parameters_for_a_token() -> None:
    assert sum(cost.active_parameters(preset("mixtral")).values()) == pytest.approx(
        12.9e9, rel=0.005
    )


def test_active_parameters_are_those_with_a_gradient_from_one_token() -> None:
    """One token uses n_experts_per_token experts and the shared one; all embedding rows count."""
    spec = decoder_only(50, 32, 2, s.Attention(4, 2, 8), EXPERTS)
    model = build(spec)
    run(model, Workload(1, 0, 1)).sum().backward()
    active = 0
    for name, weight in model.named_parameters():
        used = (
            weight.grad.flatten(1).any(1).sum() / len(weight)
            if ".experts." in name and weight.grad is not None
            else 1
        )
        active += int(used * weight.numel())
    assert sum(cost.active_parameters(spec).values()) == active


# ── FLOPs ─────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("name", TINY)
def test_flops_by_part_equal_what_torch_counts(name: str) -> None:
    workload = small_workload(TINY[name])
    assert cost.flops(TINY[name], workload) == counted_parts(build(TINY[name]), workload)


# torch counts no FLOPs inside an LSTM
@pytest.mark.parametrize("mixer", MIXERS[:4], ids=lambda mixer: type(mixer).__name__)
@pytest.mark.parametrize("causal", [False, True])
def test_flops_of_other_mixers_equal_what_torch_counts(mixer: s.Mixer, causal: bool) -> None:
    spec = s.Spec(30, 32, decoder=s.Stack((s.Layer(mixer, s.Dense(40)),), causal), max_len=16)
    ours, theirs = (
        cost.flops(spec, small_workload(spec)),
        counted_parts(build(spec), small_workload(spec)),
    )
    sums = [
        sum(counts.pop(part, 0) for part in ("attention", "scores")) for counts in (ours, theirs)
    ]
    assert sums[0] == sums[1] and ours == theirs


def test_flops_of_experts_are_exact_when_every_token_uses_all() -> None:
    spec = decoder_only(50, 32, 2, s.Attention(4, 2, 8), replace(EXPERTS, n_experts_per_token=4))
    assert cost.flops(spec, small_workload(spec)) == counted_parts(
        build(spec), small_workload(spec)
    )


def test_flops_of_experts_do_not_count_the_padding_of_the_batched_product() -> None:
    """The batched product pads every expert to the tokens of the busiest one."""
    spec = decoder_only(50, 32, 2, s.Attention(4, 2, 8), EXPERTS)
    model, workload, padding = build(spec), small_workload(spec), []
    for block in model.decoder.layers:  # type: ignore[union-attr]
        block.ffn.branch.experts.register_forward_hook(  # type: ignore[union-attr]
            lambda _, args, __: padding.append(
                args[0].shape[0] * args[0].shape[1] - workload.tokens * EXPERTS.n_experts_per_token
            )
        )
    theirs, ours = counted_parts(model, workload), cost.flops(spec, workload)
    assert len(padding) == 2 and sum(padding) > 0
    assert theirs["feed_forward"] - ours["feed_forward"] == sum(padding) * 2 * 3 * 32 * 20


@pytest.mark.parametrize("name", TINY)
def test_training_flops_are_three_forwards_and_recomputed_scores(name: str) -> None:
    """Fused backward recomputes q k^T, half of the scores; latent attention is not fused here."""
    spec, workload = TINY[name], small_workload(TINY[name])
    forward = cost.flops(spec, workload)
    recomputed = (
        0 if name == "latent" else (forward["scores"] + forward.get("cross_scores", 0)) // 2
    )
    total = counted(lambda: run(build(spec), workload).square().sum().backward()).get_total_flops()
    assert total == cost.training_flops(spec, workload) + recomputed


@pytest.mark.parametrize("n_tokens", [7, 16, 17, 32, 33, 64])
@pytest.mark.parametrize("causal", [False, True])
def test_flops_of_a_window_equal_what_torch_counts(n_tokens: int, causal: bool) -> None:
    spec, workload = windowed_spec(8, causal), Workload(2, 0, n_tokens)
    assert cost.flops(spec, workload) == counted_parts(build(spec), workload)


def windowed_spec(window: int, causal: bool = True, d_head: int = 8) -> s.Spec:
    layer = s.Layer(s.Attention(4, 2, d_head, window=window), s.Gated(40), repeat=2)
    return s.Spec(50, 32, decoder=s.Stack((layer,), causal))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_tokens", [32, 33, 37, 40, 64, 128])
def test_a_window_costs_flops_linear_in_the_length(n_tokens: int, causal: bool) -> None:
    """From n = 4 w on, twice the tokens cost at most 2.2 times the FLOPs; memory likewise."""
    model = build(windowed_spec(8, causal))
    counts, saved = [], []
    for n in (n_tokens, 2 * n_tokens):
        ids = torch.randint(0, 50, (1, n))
        by_module = counted(lambda ids=ids: model.decode(ids).sum().backward()).get_flop_counts()
        counts.append(sum(by_module["Global"].values()))
        scores = counted(lambda ids=ids: model.decode(ids)).get_flop_counts()
        counts.append(
            sum(sum(ops.values()) for name, ops in scores.items() if name.endswith("branch.core"))
        )
        saved.append(saved_bytes(model, Workload(1, 0, n)))
    assert counts[2] <= 2.2 * counts[0] and counts[3] <= 2.2 * counts[1]
    assert saved[1] <= 2.2 * saved[0]


def test_a_step_with_a_window_costs_the_same_at_every_length() -> None:
    spec = windowed_spec(8)
    model, cache = build(spec).eval(), build(spec).new_cache()
    costs, sizes = {}, {}
    with torch.no_grad():
        for position in range(130):
            ids = torch.full((1, 1), position % 50)
            step = counted(lambda ids=ids: model.decode(ids, cache=cache))
            costs[position], sizes[position] = step.get_total_flops(), cache.bytes
    assert costs[10] == costs[64] == costs[129] > costs[2]
    # layers, k and v, kv_heads, window, d_head, float32
    assert sizes[10] == sizes[64] == sizes[129] == 2 * 2 * 2 * 8 * 8 * 4
    assert sizes[129] == cost.memory(spec, Workload(1, 0, 130)).cache
    storage = [t.untyped_storage().nbytes() for lc in cache.layers for t in lc.attn.tensors]
    assert sum(storage) == sizes[129]


def test_a_sequence_longer_than_the_context_is_rejected() -> None:
    with pytest.raises(QkvError) as error:
        cost.make_workload(preset("gpt2"), seq_len=1_025)
    assert str(error.value) == (
        "--seq-len: 1025 tokens are too many; the context length of this model is 1024"
    )


# ── Bytes ─────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("name", ["encoder-decoder", "gpt", "grouped", "wide heads", "latent"])
def test_cache_bytes_equal_those_of_a_cache(name: str) -> None:
    spec, workload = TINY[name], small_workload(TINY[name])
    model, cache = build(spec).eval(), build(spec).new_cache()
    memory = (
        model.encode(torch.ones(workload.batch, workload.source, dtype=torch.long))
        if workload.source
        else None
    )
    for _ in range(workload.target):
        model.decode(torch.ones(workload.batch, 1, dtype=torch.long), memory, cache)
    cross = sum(tensor.nbytes for layer in cache.layers for tensor in layer.cross.tensors or ())
    expected = cost.memory(spec, workload)
    window = getattr(spec.decoder.layers[0].mixer, "window", None) or workload.target
    assert expected.cache_per_token * workload.batch * window == cache.bytes
    assert expected.cache == cache.bytes + cross and (cross > 0) == (name == "encoder-decoder")


def test_cache_figures_of_known_models() -> None:
    """Llama-2-7B: 0.5 MB per token in bf16; DeepSeek-V2-Lite: 27 layers of 512 + 64 values."""
    llama, deepseek = preset("llama2-7b"), preset("deepseek")
    assert cost.memory(llama, cost.make_workload(llama), "bfloat16").cache_per_token == 524_288
    assert cost.cached_values(deepseek) == 27 * 576
    assert cost.windowed_cache_values(preset("mistral"), 32_768) == 4_096 * cost.cached_values(
        preset("mistral")
    )


@pytest.mark.parametrize("name", TINY)
def test_optimizer_bytes_equal_torchs_moments(name: str) -> None:
    spec = TINY[name]
    model = build(spec)
    moments = 2 * sum(p.nbytes for p in model.parameters())
    if name == "gpt":
        optimizer = torch.optim.Adam(model.parameters())
        run(model, small_workload(spec)).sum().backward()
        optimizer.step()
        assert moments == sum(
            tensor.nbytes
            for state in optimizer.state.values()
            for key, tensor in state.items()
            if key != "step"
        )
    memory = cost.memory(spec, small_workload(spec))
    assert memory.adam == moments
    assert memory.weights == memory.gradients == sum(p.nbytes for p in model.parameters())
    muon, _ = make_optimizers(model, Recipe(optimizer="muon"))
    one_moment = sum(p.nbytes for group in muon.param_groups for p in group["params"])
    assert memory.muon == moments - one_moment


def saved_bytes(model: Transformer, workload: Workload) -> int:
    """Bytes that autograd saves in a training pass: every storage once, without weights."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}  # references, so that no address is reused

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and tensor.shape != model.embed.weight.shape:
            saved[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        ids = torch.ones(workload.batch, workload.target or workload.source, dtype=torch.long)
        memory = (
            model.encode(torch.ones(workload.batch, workload.source, dtype=torch.long))
            if workload.source
            else None
        )
        loss = model.loss(model.decode(ids, memory), ids)
    assert loss.requires_grad
    return sum(storage.nbytes() for storage in saved.values())


@pytest.mark.parametrize(
    "name",
    ["encoder-decoder", "gpt", "grouped", "latent", "experts", "dropout", "attention dropout"],
)
def test_estimated_activations_are_near_what_autograd_saves(name: str) -> None:
    extra = {
        "experts": decoder_only(50, 32, 2, s.Attention(4, 2, 8), EXPERTS),
        "dropout": replace(TINY["gpt"], dropout=0.1),
        "attention dropout": decoder_only(
            50, 32, 2, s.Attention(4, 2, 8, dropout=0.1), s.Gated(40)
        ),
    }
    spec = (TINY | extra)[name]
    workload = cost.make_workload(spec, batch=8, seq_len=24)
    ratio = cost.memory(spec, workload).activations / saved_bytes(build(spec).train(), workload)
    assert 0.67 < ratio < 1.5


# ── Formulas and time ─────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("name", [*PRESETS, *TINY])
def test_the_reasons_add_up_to_the_difference(name: str) -> None:
    spec = TINY[name] if name in TINY else preset(name)
    for row in compare_formulas(spec, cost.make_workload(spec, 2, 16, 24), tokens=1_000):
        differences = sum(reason.difference for reason in row.reasons)
        assert row.estimate + differences == pytest.approx(row.exact, rel=1e-12)


def test_the_formulas_are_exact_for_the_model_they_describe() -> None:
    """d_ff = 4 d, multi-head attention, no biases, no head: only the norms differ."""
    layer = s.Layer(s.Attention(4, 4, 8), s.Dense(128), repeat=3)
    spec = s.Spec(50, 32, decoder=s.Stack((layer,), causal=True), head=None)
    workload = cost.make_workload(spec, batch=2, seq_len=16)
    comparisons = {row.formula: row for row in compare_formulas(spec, workload)}
    assert comparisons["12 l d²"].estimate == 12 * 3 * 32**2
    assert comparisons["12 l d²"].exact - comparisons["12 l d²"].estimate == 3 * 2 * 2 * 32
    assert comparisons["12 l d² + V d"].estimate == 12 * 3 * 32**2 + 50 * 32
    forward = comparisons["l (24 b s d² + 4 b s² d)"]
    assert (
        forward.exact == forward.estimate == 3 * (24 * 2 * 16 * 32**2 + 4 * 2 * 16**2 * 32)
        and not forward.reasons
    )
    token = comparisons["C = 6 N D"]  # 6 N (1 + s / 6 d)
    assert token.exact == pytest.approx(token.estimate * (1 + 16 / (6 * 32)))
    assert comparisons["8 d² / 12 d²"].exact == pytest.approx(8 * 32**2 / (12 * 32**2 + 2 * 2 * 32))
    assert comparisons["2 l d x 4"].exact == comparisons["2 l d x 4"].estimate == 2 * 3 * 32 * 4


def test_the_rate_is_that_of_the_fastest_product_within_the_time(monkeypatch: Any) -> None:
    """With a fake clock: products of 0.3, 0.1 and 0.2 s; a fourth would start after 0.5 s."""
    times = iter([0.0, 0.0, 0.3, 0.3, 0.4, 0.4, 0.6, 0.6])
    monkeypatch.setattr(rate, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    assert measured_gflops(seconds=0.5, size=64) == pytest.approx(2 * 64**3 / 0.1 / 1e9)
    assert next(times, None) is None


def test_one_product_is_measured_even_if_it_takes_longer(monkeypatch: Any) -> None:
    times = iter([0.0, 3.0, 7.0, 7.0])
    monkeypatch.setattr(rate, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    assert measured_gflops(seconds=0.5, size=64) == pytest.approx(2 * 64**3 / 4.0 / 1e9)


def test_hours_are_flops_divided_by_the_rate() -> None:
    spec = TINY["encoder-decoder"]
    workload = small_workload(spec)  # 3 x (7 + 11) tokens
    assert cost.hours(spec, workload, 540, 2.0) == pytest.approx(
        10 * cost.training_flops(spec, workload) / 2e9 / 3_600
    )
