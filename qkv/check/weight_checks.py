"""Checks of weights and files: finite values, tied weights, vocabulary size, save and load."""

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.check.checked_model import CheckedModel, relative_difference
from qkv.check.result import CheckResult
from qkv.messages import _, listed
from qkv.model import spec as s
from qkv.model.head import LmHead
from qkv.text.tokenizer import Tokenizer


def weights_are_finite(checked: CheckedModel) -> CheckResult:
    counts = {
        name: int((~tensor.isfinite()).sum())
        for name, tensor in checked.original.state_dict().items()
    }
    broken = ", ".join(f"{name}: {count}" for name, count in counts.items() if count)
    if broken:
        message = _("NaN or infinity in {weights}; use an earlier checkpoint", weights=broken)
        return CheckResult(False, message)
    n_parameters = sum(weight.numel() for weight in checked.original.parameters())
    return CheckResult(True, _("{n_parameters:,} parameters", n_parameters=n_parameters))


def tied_weights_match_spec(checked: CheckedModel) -> CheckResult:
    head, spec = checked.model.lm_head, checked.model.spec.head
    if not isinstance(head, LmHead) or spec is None:
        return CheckResult(None, _("this model has no output head"))
    if isinstance(spec, s.LmHead) and not spec.tied:
        return untied_head_differs(head, checked.model.embed.weight)
    x = torch.randn(
        1,
        4,
        checked.model.spec.d_model,
        generator=torch.Generator().manual_seed(1),
        dtype=torch.float64,
    )
    x = x.to(checked.device, checked.dtype)
    tied_logits = F.linear(head.prepared(x), checked.model.embed.weight, head.bias)
    difference = relative_difference(checked.model.logits(x), tied_logits)
    if difference <= checked.tolerance:
        message = _("the head uses the embedding matrix, as in model.json")
        return CheckResult(True, message, difference)
    message = _(
        "tied in model.json, but the head uses another matrix; does the checkpoint have a stale "
        "lm_head.weight?"
    )
    return CheckResult(False, message, difference)


def untied_head_differs(head: LmHead, embedding: Tensor) -> CheckResult:
    if head.weight is None or torch.equal(head.weight, embedding):
        message = _(
            "not tied in model.json, but head and embedding are equal; set head.tied to true"
        )
        return CheckResult(False, message)
    return CheckResult(True, _("head and embedding are separate matrices, as in model.json"))


def vocabulary_sizes_match(checked: CheckedModel) -> CheckResult:
    spec = checked.model.spec
    source = spec.source_vocab_size or spec.vocab_size
    rows = {"tokenizer": min(spec.vocab_size, source), "source": source, "target": spec.vocab_size}
    if not checked.tokenizers:
        return CheckResult(None, _("there is no tokenizer in the folder"))
    mismatches = [
        size_mismatch(name, tokenizer, rows[name]) for name, tokenizer in checked.tokenizers.items()
    ]
    if any(mismatches):
        return CheckResult(False, listed(filter(None, mismatches)))
    sizes = ", ".join(
        f"{tokenizer.vocab_size:,} / {rows[name]:,}"
        for name, tokenizer in checked.tokenizers.items()
    )
    return CheckResult(True, _("tokens / embedding rows: {sizes}", sizes=sizes))


def size_mismatch(name: str, tokenizer: Tokenizer, rows: int) -> str:
    """A message if there are more tokens than rows, or many more rows than tokens.

    A few spare rows are usual: vocabularies are padded to a multiple of 64 or 128.
    """
    tokens = tokenizer.vocab_size
    if tokens > rows:
        return _(
            "{name}: {tokens:,} tokens, but the embedding has {rows:,} rows; it is another "
            "model's tokenizer",
            name=name,
            tokens=tokens,
            rows=rows,
        )
    if rows - tokens > max(128, rows // 50):
        return _(
            "{name}: {tokens:,} tokens for {rows:,} embedding rows; is it this model's tokenizer?",
            name=name,
            tokens=tokens,
            rows=rows,
        )
    return ""


def saving_is_bit_exact(checked: CheckedModel) -> CheckResult:
    if checked.reload is None:
        return CheckResult(None, _("no function to save and load was given"))
    model, tokenizers = checked.reload(checked.original, checked.tokenizers)
    before, after = checked.original.state_dict(), model.state_dict()
    changed = [
        name
        for name in {**before, **after}
        if name not in before
        or name not in after
        or before[name].dtype != after[name].dtype
        or not torch.equal(bytes_of(before[name]), bytes_of(after[name]))
    ]
    changed += ["model.json"] * (model.spec != checked.original.spec)
    changed += [
        name
        for name, tokenizer in checked.tokenizers.items()
        if name not in tokenizers or tokenizers[name].fingerprint != tokenizer.fingerprint
    ]
    if changed:
        return CheckResult(False, _("changed after loading: {names}", names=listed(changed)))
    return CheckResult(True, _("{n_tensors} tensors", n_tensors=len(before)))


def bytes_of(tensor: Tensor) -> Tensor:
    """The tensor's bytes: torch.equal on bytes is true for equal NaNs."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
