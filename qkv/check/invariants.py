"""Checks of the invariants of a Transformer on a user's model. See docs/guides/inspect.md."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from qkv.check import pass_checks, weight_checks
from qkv.check.checked_model import CheckedModel, Reload, Tokenizers
from qkv.check.result import CheckResult
from qkv.messages import N_, _
from qkv.model.transformer import Transformer

__all__ = ["run_checks"]


def run_checks(
    model: Transformer, tokenizers: Tokenizers | None = None, reload: Reload | None = None
) -> list[CheckResult]:
    """Run every check on a model, which is left unchanged.

    Args:
        model: The model; the checks run a copy of it.
        tokenizers: Its tokenizers by name ("tokenizer", or "source" and "target").
        reload: Saves a model with its tokenizers and loads them again; None skips that check.
    """
    return check_model(CheckedModel(model, tokenizers or {}, reload))


@torch.no_grad()
def check_model(checked: CheckedModel) -> list[CheckResult]:
    """Run every check; one that requires a failed check is skipped."""
    results: dict[str, CheckResult] = {}
    for name, check in CHECKS.items():
        failed = [results[other] for other in check.requires if results[other].passed is False]
        result = skipped(failed[0]) if failed else run_check(check.run, checked)
        results[name] = replace(result, check=name, title=_(check.title))
    return list(results.values())


def skipped(failed: CheckResult) -> CheckResult:
    return CheckResult(None, _("skipped: this check failed: {title}", title=failed.title))


def run_check(run: Callable[[CheckedModel], CheckResult], checked: CheckedModel) -> CheckResult:
    """Run one check; an exception is a failure."""
    try:
        return run(checked)
    except Exception as error:
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0] if lines else ''}"
        return CheckResult(False, _("the pass raised {reason}", reason=reason))


@dataclass(frozen=True)
class Check:
    """A check, and the checks that must not have failed before it."""

    title: str
    run: Callable[[CheckedModel], CheckResult]
    requires: tuple[str, ...] = ()


CHECKS = {
    "finite": Check(N_("all weights are finite"), weight_checks.weights_are_finite),
    "tied": Check(
        N_("tied weights: as in model.json"), weight_checks.tied_weights_match_spec, ("finite",)
    ),
    "vocabulary": Check(
        N_("vocabulary: tokenizer and model have the same size"),
        weight_checks.vocabulary_sizes_match,
    ),
    "causality": Check(
        N_("causality: later tokens have no effect"),
        pass_checks.later_tokens_have_no_effect,
        ("finite",),
    ),
    "cache": Check(
        N_("KV cache: same result as without it"),
        pass_checks.cache_has_no_effect,
        ("finite", "causality"),
    ),
    "padding": Check(
        N_("padding: its tokens have no effect"), pass_checks.padding_has_no_effect, ("finite",)
    ),
    "batch": Check(
        N_("batch invariance: same result alone and in a batch"),
        pass_checks.batch_has_no_effect,
        ("finite", "padding"),
    ),
    "fused": Check(
        N_("fused attention: same result as eager attention"),
        pass_checks.fused_attention_equals_eager,
        ("finite",),
    ),
    "saved": Check(
        N_("save and load: weights and files stay bit-identical"), weight_checks.saving_is_bit_exact
    ),
}
