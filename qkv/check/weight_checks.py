"""Checks of weights and files: finite values, tied weights, vocabulary size, save and load."""

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.check.checked_model import CheckedModel, relative_difference
from qkv.check.result import CheckResult
from qkv.checkpoint.load import embedding_rows
from qkv.messages import N_, _, listed
from qkv.model import spec as s
from qkv.model.head import LmHead


def weights_are_finite(checked: CheckedModel) -> CheckResult:
    counts = {
        name: int((~tensor.isfinite()).sum())
        for name, tensor in checked.original.state_dict().items()
    }
    broken = listed(f"{name}: {count}" for name, count in counts.items() if count)
    if broken:
        message = _("NaN or infinity in {weights}; use an earlier checkpoint", weights=broken)
        return CheckResult(False, message)
    return CheckResult(True, _("{n_parameters:,} parameters", n_parameters=checked.n_parameters))


def tied_weights_match_spec(checked: CheckedModel) -> CheckResult:
    model = checked.model
    head, spec, embedding = model.lm_head, model.spec.head, model.embed.weight
    if not isinstance(head, LmHead) or spec is None:
        return CheckResult(None, _("this model has no output head"))
    if isinstance(spec, s.LmHead) and not spec.tied:
        return untied_head_differs(head, embedding)
    generator, shape = torch.Generator().manual_seed(1), (1, 4, model.spec.d_model)
    x = torch.randn(shape, generator=generator, dtype=torch.float64).to(embedding)
    tied_logits = F.linear(head.prepared(x), embedding, head.bias)
    difference = relative_difference(model.logits(x), tied_logits)
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
    rows = embedding_rows(checked.model.spec)
    if not checked.tokenizers:
        return CheckResult(None, _("there is no tokenizer in the folder"))
    tokens = {name: tokenizer.vocab_size for name, tokenizer in checked.tokenizers.items()}
    mismatches = listed(
        filter(None, (size_mismatch(name, tokens[name], rows[name]) for name in tokens))
    )
    if mismatches:
        return CheckResult(False, mismatches)
    sizes = ", ".join(f"{tokens[name]:,} / {rows[name]:,}" for name in tokens)
    return CheckResult(True, _("tokens / embedding rows: {sizes}", sizes=sizes))


def size_mismatch(name: str, tokens: int, rows: int) -> str:
    """A message if there are more tokens than rows, or many more rows than tokens.

    A few spare rows are usual: vocabularies are padded to a multiple of 64 or 128.
    """
    message = ""
    if tokens > rows:
        message = N_(
            "{name}: {tokens:,} tokens, but the embedding has {rows:,} rows; it is another "
            "model's tokenizer"
        )
    elif rows - tokens > max(128, rows // 50):
        message = N_(
            "{name}: {tokens:,} tokens for {rows:,} embedding rows; is it this model's tokenizer?"
        )
    return message and _(message, name=name, tokens=tokens, rows=rows)


def saving_is_bit_exact(checked: CheckedModel) -> CheckResult:
    if checked.reload is None:
        return CheckResult(None, _("no function to save and load was given"))
    model, tokenizers = checked.reload(checked.original, checked.tokenizers)
    before, after = checked.original.state_dict(), model.state_dict()
    names = {**before, **after}
    changed = [name for name in names if not same_bits(before.get(name), after.get(name))]
    changed += ["model.json"] * (model.spec != checked.original.spec)
    changed += [
        name
        for name, tokenizer in checked.tokenizers.items()
        if name not in tokenizers or tokenizers[name].fingerprint != tokenizer.fingerprint
    ]
    if changed:
        return CheckResult(False, _("changed after loading: {names}", names=listed(changed)))
    return CheckResult(True, _("{n_tensors} tensors", n_tensors=len(before)))


def same_bits(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None or a.dtype != b.dtype:
        return False
    return torch.equal(bytes_of(a), bytes_of(b))


def bytes_of(tensor: Tensor) -> Tensor:
    """The tensor's bytes: torch.equal on bytes is true for equal NaNs."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
