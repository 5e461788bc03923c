"""What does the KV cache save? Time per token with and without it, and its bytes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from qkv.messages import N_, _
from qkv.model.eval_mode import eval_mode
from qkv.model.presets import from_sizes
from qkv.model.spec import Attention, LatentAttention, Mixer, Spec, Stack
from qkv.model.transformer import Transformer
from qkv.study.language_model import VOCAB_SIZE, new_model
from qkv.study.question import (
    Column,
    Condition,
    Experiment,
    Lines,
    Measurement,
    Question,
    Trial,
    Values,
)
from qkv.study.results import Results

D_MODEL, N_LAYERS, N_HEADS, D_HEAD = 128, 4, 8, 16
LENGTHS = (16, 64, 256, 1024)
REPEATS = 3  # the fastest one counts
LATENT_RANK, ROTARY_WIDTH = 32, 8  # of MLA
MIXERS: dict[str, Mixer] = {
    "mha": Attention(N_HEADS, N_HEADS, D_HEAD),
    "gqa": Attention(N_HEADS, 2, D_HEAD),
    "mqa": Attention(N_HEADS, 1, D_HEAD),
    "mla": LatentAttention(N_HEADS, LATENT_RANK, D_HEAD, ROTARY_WIDTH, D_HEAD),
}


def spec_of(mixer: Mixer) -> Spec:
    spec = from_sizes("decoder-only", VOCAB_SIZE, D_MODEL, N_LAYERS, N_HEADS, 4 * D_MODEL,
                      dropout=0.0, max_len=2 * max(LENGTHS))  # fmt: skip
    assert spec.decoder is not None
    layer = replace(spec.decoder.layers[0], mixer=mixer)
    return replace(spec, decoder=Stack((layer,), causal=True, final_norm=True))


def measure(trial: Trial) -> Measurement:
    """Time the token after each length: the cached step, and a full pass over all tokens."""
    model = new_model(spec_of(MIXERS[trial.settings["mixer"]]), trial)
    timed = [time_token(model, length) for length in LENGTHS]
    cached, full, n_bytes, differences = map(list, zip(*timed, strict=True))
    return {
        "lengths": list(LENGTHS),
        "cached_ms": cached,
        "full_ms": full,
        "bytes": n_bytes,
        "first_cached_ms": cached[0],
        "first_full_ms": full[0],
        "last_cached_ms": cached[-1],
        "last_full_ms": full[-1],
        "speedup": full[-1] / cached[-1],
        "bytes_per_token": n_bytes[-1] / LENGTHS[-1],
        "largest_difference": max(differences),
    }


def time_token(model: Transformer, length: int) -> tuple[float, float, int, float]:
    """Milliseconds with and without the cache, its bytes, the largest difference of the results."""
    ids = torch.randint(0, VOCAB_SIZE, (1, length + 1))
    with eval_mode(model):
        caches = [model.new_cache() for _ in range(REPEATS)]
        for cache in caches:
            model.decode(ids[:, :-1], cache=cache)  # prefill
        n_bytes = caches[0].bytes
        steps = [partial(model.decode, ids[:, -1:], cache=cache) for cache in caches]
        cached, with_cache = fastest(steps)
        full, without = fastest([lambda: model.decode(ids)] * REPEATS)
    difference = (with_cache[:, -1] - without[:, -1]).abs().max().item()
    return cached, full, n_bytes, difference


def fastest(calls: Sequence[Callable[[], torch.Tensor]]) -> tuple[float, torch.Tensor]:
    """The shortest time of a call in milliseconds, and the last result."""
    times = []
    for call in calls:
        start = time.perf_counter()
        result = call()
        times.append(1_000 * (time.perf_counter() - start))
    return min(times), result


def conclude(results: Results) -> str:
    first = results.mean("cache", "mha", "bytes_per_token")
    fractions = {name: results.mean("cache", name, "bytes_per_token") / first for name in MIXERS}
    return _(
        "After {length:,} tokens a step takes {cached:.1f} ms with the cache and {full:.1f} ms "
        "without ({speedup:.0f} times), after {shortest} tokens {short_cached:.1f} and "
        "{short_full:.1f} ms. The cache of multi-head attention has {n_bytes:,.0f} bytes per "
        "token; GQA needs {gqa:.0%} of it, MQA {mqa:.0%}, MLA {mla:.0%}. The results are equal "
        "within {difference:.0e}.",
        length=LENGTHS[-1],
        cached=results.mean("cache", "mha", "last_cached_ms"),
        full=results.mean("cache", "mha", "last_full_ms"),
        speedup=results.mean("cache", "mha", "speedup"),
        shortest=LENGTHS[0],
        short_cached=results.mean("cache", "mha", "first_cached_ms"),
        short_full=results.mean("cache", "mha", "first_full_ms"),
        n_bytes=first,
        gqa=fractions["gqa"],
        mqa=fractions["mqa"],
        mla=fractions["mla"],
        difference=max(results.mean("cache", name, "largest_difference") for name in MIXERS),
    )


def condition(label: str, mixer: str) -> Condition:
    return Condition(label, {"mixer": mixer})


QUESTION = Question(
    experiments={
        "cache": Experiment(
            title=N_("The token after 1,024 tokens, batch 1, one thread"),
            conditions={
                "mha": condition(N_("MHA: 8 key/value heads"), "mha"),
                "gqa": condition(N_("GQA: 2 key/value heads"), "gqa"),
                "mqa": condition(N_("MQA: 1 key/value head"), "mqa"),
                "mla": condition(N_("MLA: a latent of 32 and a rotary key of 8"), "mla"),
            },
            measure=measure,
            equal=N_("d_model 128, 4 layers, 8 query heads of width 16, feed-forward, float32"),
            columns=(
                Column("last_cached_ms", N_("with cache, ms"), ".2f"),
                Column("last_full_ms", N_("without, ms"), ".2f"),
                Column("speedup", N_("times faster"), ".1f"),
                Column("bytes_per_token", N_("bytes per token"), ",.0f"),
                Column("largest_difference", N_("largest difference"), ".0e"),
            ),
            panels=(
                Lines("lengths", "cached_ms", N_("tokens"), N_("with cache, ms"), True, True),
                Lines("lengths", "full_ms", N_("tokens"), N_("without, ms"), True, True),
                Values("bytes_per_token", N_("bytes per token")),
            ),
        )
    },
    conclude=conclude,
    published=N_(
        "Shazeer 2019 (MQA): one key/value head makes decoding much faster with a small loss of "
        "quality. Ainslie et al. 2023 (GQA): quality near multi-head at a speed near MQA. "
        "DeepSeek-V2 2024 (MLA): a cache 93 percent smaller than that of DeepSeek 67B."
    ),
)
