"""How do time, FLOPs, sequential steps and path length grow with length and width?

Table 1 of Vaswani et al. 2017, measured on one layer of each mixer.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from qkv.messages import N_, _
from qkv.model.attention_context import AttentionContext
from qkv.model.eager_core import eager_attention
from qkv.model.mixers import RecurrentMixer, make_mixer
from qkv.model.spec import (
    Attention,
    Convolution,
    Dense,
    Layer,
    Mixer,
    NoPositions,
    Recurrent,
    Spec,
    Stack,
    TokenMlp,
)
from qkv.study.question import Column, Condition, Experiment, Measurement, Question, Trial, Values
from qkv.study.results import Results
from qkv.study.statistics import log_slope
from qkv.train.seeds import derive_seed

REPEATS = 3  # the fastest one counts
DEPTH_LENGTHS = (16, 32, 64)
PATH_LENGTH_TOKENS = 33
KERNEL = 3
MIXERS: dict[str, Callable[[int], Mixer]] = {
    "attention": lambda d: Attention(1, 1, d),
    "recurrent": lambda d: Recurrent("gru"),
    "convolution": lambda d: Convolution(KERNEL),
    "token-mlp": lambda d: TokenMlp(),
}
EXPONENTS = {  # of FLOPs in n and in d, of sequential steps in n: table 1
    "attention": (2, 1, 0),
    "recurrent": (1, 2, 1),
    "convolution": (1, 2, 0),
    "token-mlp": (2, 1, 0),
}


# ── A layer ───────────────────────────────────────────────────────────────────────────────────
def new_mixer(name: str, d_model: int, length: int, seed: int = 0) -> nn.Module:
    """A causal mixer with random weights."""
    torch.manual_seed(derive_seed(seed, 0))
    layer = Layer(MIXERS[name](d_model), Dense(d_model))
    spec = Spec(8, d_model, decoder=Stack((layer,), causal=True), positions=NoPositions(),
                max_len=length)  # fmt: skip
    mixer = make_mixer(layer, spec, causal=True)
    for weight in mixer.parameters():
        nn.init.normal_(weight, std=1 / math.sqrt(weight.shape[-1]))
    return mixer


@contextmanager
def unfused() -> Iterator[None]:
    """Inside, oneDNN does not fuse the steps of a recurrence, so that they can be counted."""
    # torch.backends.mkldnn.flags would also set TF32, with a warning where there is no GPU
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def run_mixer(mixer: nn.Module, x: Tensor) -> Tensor:
    """x (1, length, d_model) -> the same shape."""
    context = AttentionContext(x.shape[1], causal=True)
    return mixer(x, context)


def count_flops(name: str, d_model: int, length: int) -> int:
    """FLOPs of a forward pass by torch's counter, attention step by step and GRU cell by cell."""
    mixer, x = new_mixer(name, d_model, length), torch.randn(1, length, d_model)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), unfused(), eager_attention(mixer), counter:
        run_mixer(mixer, x)
    return counter.get_total_flops()


def time_pass(name: str, d_model: int, length: int) -> float:
    """The shortest of REPEATS times of a forward pass, in seconds."""
    mixer, x = new_mixer(name, d_model, length), torch.randn(1, length, d_model)
    times = []
    with torch.inference_mode():
        for _repeat in range(REPEATS):
            start = time.perf_counter()
            run_mixer(mixer, x)
            times.append(time.perf_counter() - start)
    return min(times)


# ── Sequential steps ──────────────────────────────────────────────────────────────────────────
def sequential_steps(name: str, length: int) -> int:
    """The longest chain of operations that depend on each other: the depth of autograd's graph."""
    x = torch.randn(1, length, 8, requires_grad=True)
    mixer = new_mixer(name, 8, length)
    with unfused():
        output = run_mixer(mixer, x)
    return graph_depth(output.grad_fn)


def graph_depth(root: Any) -> int:
    """The longest path from a node of autograd's graph to a leaf, without recursion."""
    depth: dict[Any, int] = {}
    stack = [root]
    while stack:
        node = stack[-1]
        inputs = [source for source, _index in node.next_functions if source is not None]
        waiting = [source for source in inputs if source not in depth]
        if waiting:
            stack += waiting
        else:
            depth[stack.pop()] = 1 + max((depth[source] for source in inputs), default=0)
    return depth[root]


# ── Path length ───────────────────────────────────────────────────────────────────────────────
def path_length(name: str, length: int) -> int:
    """The fewest layers until the last output depends on the first input, by the Jacobian.

    A recurrent layer passes its state through every step between them: its steps are counted.
    """
    if name == "recurrent":
        return recurrent_path_length(length)
    layers: list[nn.Module] = []
    while True:
        layers.append(new_mixer(name, 8, length, seed=len(layers)).double())
        x = torch.randn(1, length, 8, dtype=torch.float64, requires_grad=True)
        y = x
        for layer in layers:
            y = run_mixer(layer, y)
        if reaches(x, y):
            return len(layers)


def recurrent_path_length(length: int) -> int:
    """One, and one for each step whose removal cuts the last output off from the first input."""
    mixer = new_mixer("recurrent", 8, length)
    assert isinstance(mixer, RecurrentMixer)
    cut = [not reaches(*unrolled(mixer.onward, length, step)) for step in range(1, length)]
    return 1 + sum(cut)


def unrolled(cell: nn.Module, length: int, cut_before: int) -> tuple[Tensor, Tensor]:
    """Input and output of a recurrence step by step, its state cut off before one step."""
    x = torch.randn(1, length, 8, requires_grad=True)
    outputs, state = [], None
    for step in range(length):
        if state is not None and step == cut_before:
            state = state.detach()
        output, state = cell(x[:, step : step + 1], state)
        outputs.append(output)
    return x, torch.cat(outputs, dim=1)


def reaches(x: Tensor, y: Tensor) -> bool:
    """Whether the last output depends on the first input."""
    (gradient,) = torch.autograd.grad(y[:, -1].sum(), x)
    return bool(gradient[:, 0].abs().sum() > 0)


# ── Study ─────────────────────────────────────────────────────────────────────────────────────
def measure(trial: Trial) -> Measurement:
    """Exponents by least squares on logarithms, where the term of the table dominates."""
    name, settings = trial.settings["mixer"], trial.settings
    by_length = [(settings["narrow"], n) for n in settings["lengths"]]
    by_width = [(d, settings["long"]) for d in settings["widths"]]
    depths = [sequential_steps(name, n) for n in DEPTH_LENGTHS]
    return {
        "flops_n": slope(count_flops, name, by_length, settings["lengths"]),
        "flops_d": slope(count_flops, name, by_width, settings["widths"]),
        "time_n": slope(time_pass, name, by_length, settings["lengths"]),
        "time_d": slope(time_pass, name, by_width, settings["widths"]),
        "steps_n": log_slope(DEPTH_LENGTHS, depths),
        "path": path_length(name, PATH_LENGTH_TOKENS),
    }


def slope(
    count: Callable[[str, int, int], float],
    name: str,
    sizes: Sequence[tuple[int, int]],
    x: Sequence[int],
) -> float:
    return log_slope(x, [count(name, d_model, length) for d_model, length in sizes])


def conclude(results: Results) -> str:
    errors = [
        abs(results.mean("layers", name, key) - expected)
        for name, exponents in EXPONENTS.items()
        for key, expected in zip(("flops_n", "flops_d", "steps_n"), exponents, strict=True)
    ]
    return _(
        "FLOPs and sequential steps grow with the exponents of the table, within {error:.2f}: "
        "attention with n² d, a recurrence and a convolution with n d². The time of attention "
        "grows with n^{time_attention:.2f}, that of a recurrence with n^{time_recurrent:.2f}. From "
        "the first token to the last of {n} it takes {attention:.0f} layer of attention, "
        "{convolution:.0f} layers of a convolution of width {width} and {recurrent:.0f} steps of a "
        "recurrence.",
        error=max(errors),
        n=PATH_LENGTH_TOKENS,
        width=KERNEL,
        time_attention=results.mean("layers", "attention", "time_n"),
        time_recurrent=results.mean("layers", "recurrent", "time_n"),
        **{name: results.mean("layers", name, "path") for name in EXPONENTS if "-" not in name},
    )


def condition(label: str, mixer: str, quadratic: bool) -> Condition:
    """Lengths and widths: long and narrow where n² d dominates, else short and wide."""
    sizes = {"lengths": [1024, 2048, 4096], "narrow": 16, "widths": [8, 16, 32], "long": 4096}
    if not quadratic:
        sizes = {"lengths": [128, 256, 512], "narrow": 128, "widths": [64, 128, 256], "long": 128}
    return Condition(label, {"mixer": mixer, **sizes})


QUESTION = Question(
    experiments={
        "layers": Experiment(
            title=N_("One layer: exponents in the length n and the width d"),
            conditions={
                "attention": condition(N_("self-attention: n² d, 1 step"), "attention", True),
                "recurrent": condition(N_("recurrence (GRU): n d², n steps"), "recurrent", False),
                "convolution": condition(
                    N_("convolution of width 3: 3 n d², 1 step"), "convolution", False
                ),
                "token-mlp": condition(N_("token MLP: n² d, 1 step"), "token-mlp", True),
            },
            measure=measure,
            equal=N_("batch 1, one thread, float32; lengths and widths where one term dominates"),
            columns=(
                Column("flops_n", N_("FLOPs, exponent of n"), ".2f"),
                Column("flops_d", N_("FLOPs, exponent of d"), ".2f"),
                Column("time_n", N_("time, exponent of n"), ".2f"),
                Column("time_d", N_("time, exponent of d"), ".2f"),
                Column("steps_n", N_("sequential steps, exponent of n"), ".2f"),
                Column("path", N_("path length, 33 tokens"), ".0f"),
            ),
            panels=(
                Values("flops_n", N_("FLOPs, exponent of n")),
                Values("time_n", N_("time, exponent of n")),
                Values("path", N_("path length, 33 tokens")),
            ),
        )
    },
    conclude=conclude,
    published=N_(
        "Vaswani et al. 2017, table 1, per layer: self-attention O(n² d), 1 sequential operation, "
        "maximum path length 1; recurrent O(n d²), n, n; convolutional O(k n d²), 1, log_k(n), "
        "which needs dilated kernels: contiguous ones take n/k layers (section 4)."
    ),
)
