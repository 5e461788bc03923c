"""Proofs on a person's own model: what must hold of every Transformer is tried out on this very one.

In: a model, its tokenizers, a way to save and load. Out: a finding for each check: it holds, it fails and how, or it
was not asked and why. Told in docs/check.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.check.checked_model import Reload, Sentences, Subject, gap, memory_of, row_alone, stream
from qkv.messages import N_, _, listed
from qkv.model import spec as s
from qkv.model.explained import explained, fused_cores
from qkv.model.head import LmHead
from qkv.model.transformer import Transformer
from qkv.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Verdict:
    """`holds` is None where the question does not arise; `difference` is the worst one met."""

    holds: bool | None
    words: str
    difference: float | None = None


@dataclass(frozen=True)
class Finding(Verdict):
    """A verdict with the name of its check, for programs, and its title, for people."""

    check: str = ""
    title: str = ""


@torch.no_grad()
def prove(
    model: Transformer,
    tokenizers: Mapping[str, Tokenizer] | None = None,
    reload: Reload | None = None,
) -> list[Finding]:
    """All checks, causes before consequences: a check whose ground has failed is not asked."""
    return prove_subject(Subject(model, tokenizers or {}, reload))


@torch.no_grad()
def prove_subject(subject: Subject) -> list[Finding]:
    found: dict[str, Finding] = {}
    for name, check in CHECKS.items():
        missing = [found[ground] for ground in check.grounds if found[ground].holds is False]
        verdict = unasked(missing[0]) if missing else tried(check.run, subject)
        found[name] = Finding(
            verdict.holds, verdict.words, verdict.difference, name, _(check.title)
        )
    return list(found.values())


def unasked(ground: Finding) -> Verdict:
    return Verdict(None, _("not asked before this is mended: {title}", title=ground.title))


def tried(run: Callable[[Subject], Verdict], subject: Subject) -> Verdict:
    """A model that stops with an error has not held the check either."""
    try:
        return run(subject)
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        return Verdict(False, _("the pass stops with {reason}", reason=reason))


def judged(subject: Subject, gaps: Mapping[str, float]) -> Verdict:
    """Passes compared under different conditions: the worst one is named if rounding does not explain it."""
    where, worst = max(gaps.items(), key=lambda one: one[1] if one[1] == one[1] else torch.inf)
    if worst <= subject.tolerance:
        return Verdict(True, _("worst difference {worst:.0e}", worst=worst), worst)
    return Verdict(
        False, _("{where}, the result differs by {worst:.1e}", where=where, worst=worst), worst
    )


# ---- the weights and what lies beside them -------------------------------------------------------------------------


def finite_weights(subject: Subject) -> Verdict:
    counts = {
        name: int((~one.isfinite()).sum()) for name, one in subject.original.state_dict().items()
    }
    broken = ", ".join(f"{name}: {count}" for name, count in counts.items() if count)
    if broken:
        return Verdict(
            False, _("NaN or infinity in {broken}; take an earlier checkpoint", broken=broken)
        )
    numbers = sum(weight.numel() for weight in subject.original.parameters())
    return Verdict(True, _("{numbers:,} numbers", numbers=numbers))


def tied_as_stated(subject: Subject) -> Verdict:
    head, stated = subject.model.lm_head, subject.model.spec.head
    if not isinstance(head, LmHead) or stated is None:
        return Verdict(None, _("this model has no head over the vocabulary"))
    if isinstance(stated, s.LmHead) and not stated.tied:
        return apart(head, subject.model.embed.weight)
    x = torch.randn(
        1,
        4,
        subject.model.spec.d_model,
        generator=torch.Generator().manual_seed(1),
        dtype=torch.float64,
    )
    x = x.to(subject.device, subject.dtype)
    through_table = F.linear(head.prepared(x), subject.model.embed.weight, head.bias)
    difference = gap(subject.model.logits(x), through_table)
    if difference <= subject.tolerance:
        return Verdict(True, _("one table, as model.json says"), difference)
    return Verdict(
        False,
        _("model.json says one table, but the head uses another; is lm_head.weight a leftover?"),
        difference,
    )


def apart(head: LmHead, table: Tensor) -> Verdict:
    if head.weight is None or torch.equal(head.weight, table):
        return Verdict(
            False,
            _("model.json says two tables, but they are the same numbers; set head.tied to true"),
        )
    return Verdict(True, _("two tables, as model.json says"))


def vocabularies_agree(subject: Subject) -> Verdict:
    spec = subject.model.spec
    source = spec.source_vocab_size or spec.vocab_size
    rows = {"tokenizer": min(spec.vocab_size, source), "source": source, "target": spec.vocab_size}
    if not subject.tokenizers:
        return Verdict(None, _("there is no tokenizer in the folder"))
    told = [disagreement(name, one, rows[name]) for name, one in subject.tokenizers.items()]
    if any(told):
        return Verdict(False, _(", ").join(filter(None, told)))
    sizes = ", ".join(
        f"{one.vocab_size:,} / {rows[name]:,}" for name, one in subject.tokenizers.items()
    )
    return Verdict(True, _("tokens / rows: {sizes}", sizes=sizes))


def disagreement(name: str, tokenizer: Tokenizer, rows: int) -> str:
    """Too many tokens have no row; a few spare rows are usual, for tables are rounded up to a handy size."""
    tokens = tokenizer.vocab_size
    if tokens > rows:
        return _(
            "{name}: {tokens:,} tokens, but the model has only {rows:,} rows; it is another model's tokenizer",
            name=name,
            tokens=tokens,
            rows=rows,
        )
    if rows - tokens > max(128, rows // 50):
        return _(
            "{name}: {tokens:,} tokens for {rows:,} rows; is it this model's tokenizer?",
            name=name,
            tokens=tokens,
            rows=rows,
        )
    return ""


def comes_back(subject: Subject) -> Verdict:
    if subject.reload is None:
        return Verdict(None, _("no way to save was given"))
    model, tokenizers = subject.reload(subject.original, subject.tokenizers)
    before, after = subject.original.state_dict(), model.state_dict()
    changed = [
        name
        for name in {**before, **after}
        if name not in before
        or name not in after
        or before[name].dtype != after[name].dtype
        or not torch.equal(bits(before[name]), bits(after[name]))
    ]
    changed += ["model.json"] * (model.spec != subject.original.spec)
    changed += [
        name
        for name, one in subject.tokenizers.items()
        if name not in tokenizers or tokenizers[name].fingerprint != one.fingerprint
    ]
    if changed:
        return Verdict(False, _("came back changed: {changed}", changed=listed(changed)))
    return Verdict(True, _("{n_before} tensors", n_before=len(before)))


def bits(tensor: Tensor) -> Tensor:
    return (
        tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    )  # NaN equals itself only so


# ---- the passes ----------------------------------------------------------------------------------------------------


def blind_to_the_future(subject: Subject) -> Verdict:
    stack, length = subject.model.spec.decoder or subject.model.spec.encoder, min(16, subject.limit)
    assert stack is not None
    if stack.sees != "past":
        return Verdict(None, _("it sees the whole text, as model.json says"))
    texts = subject.sentences(1, length).keep(
        torch.zeros(length, dtype=torch.long, device=subject.device)
    )
    later = torch.ones(length, length, dtype=torch.bool, device=subject.device).triu(
        1
    )  # row r: all tokens after r
    changed = Sentences(
        texts.ids.where(~later, (texts.ids + 1) % subject.model.spec.vocab_size),
        source=texts.source,
    )
    before, after = (
        stream(subject.model, texts),
        stream(subject.model, changed),
    )  # (length, length, d_model)
    moved = (after - before).abs().amax(dim=-1).masked_fill(later, 0.0) / before.abs().max().clamp(
        min=1e-30
    )
    first = int((moved > subject.tolerance).any(dim=0).int().argmax())
    return judged(
        subject,
        {
            _("when only later tokens change, token {first} is not the same", first=first): float(
                moved.max()
            )
        },
    )


def cached_as_uncached(subject: Subject) -> Verdict:
    stack = subject.model.spec.decoder
    if stack is None or stack.sees != "past":
        return Verdict(None, _("it does not decode step by step"))
    texts = subject.sentences(3, subject.limit)
    left = subject.padded(subject.sentences(3, subject.limit - subject.room), "left", filler=0)
    gaps = {_("without padding"): cache_gap(subject.model, texts)}
    return judged(subject, gaps | {_("with padding on the left"): cache_gap(subject.model, left)})


def cache_gap(model: Transformer, texts: Sentences) -> float:
    """Decoding in pieces, sentences dropped and repeated halfway, against whole passes."""
    rows = torch.tensor([2, 0, 0], device=texts.ids.device)
    cuts = [cut for cut in (3, 6, 7, 67, 68, 69) if cut < texts.ids.shape[1]]
    starts, half = [0, *cuts], len(cuts) // 2
    cache, now, memory, worst = model.new_cache(), texts, memory_of(model, texts), 0.0
    whole = stream(model, texts)
    for index, start in enumerate(starts):
        if index == half and index:
            cache.keep(rows)
            now, memory = now.keep(rows), None if memory is None else memory.keep(rows)
            whole = stream(model, now)
        piece = slice(start, starts[index + 1] if index + 1 < len(starts) else None)
        real = None if now.real is None else now.real[:, piece]
        step = model.decode(now.ids[:, piece], memory, cache, real)
        seen = (
            slice(None) if real is None else real
        )  # what a padded place gives is nobody's concern
        if real is None or real.any():
            worst = worse(worst, gap(step[seen], whole[:, piece][seen]))
    return worst


def worse(one: float, other: float) -> float:
    """The greater difference; NaN is the worst."""
    return other if other != other or other > one else one


def padding_is_inert(subject: Subject) -> Verdict:
    gaps, last = (
        {},
        min(subject.model.spec.vocab_size, subject.model.spec.source_vocab_size or 1 << 62) - 1,
    )
    for side, name in sides().items():
        one, other = (subject.padded(short(subject), side, filler) for filler in (0, last))
        ours, theirs = stream(subject.model, one), stream(subject.model, other)
        if not (ours.isfinite().all() and theirs.isfinite().all()):
            return Verdict(False, _("{name}, padding gives NaN or infinity", name=name))
        gaps[name + _(" with other tokens")] = gap(ours[one.real], theirs[one.real])
    return judged(subject, gaps)


def alone_as_in_a_batch(subject: Subject) -> Verdict:
    gaps = {}
    for side, name in sides().items():
        texts = subject.padded(short(subject), side, filler=0)
        together, worst = stream(subject.model, texts), 0.0
        assert texts.real is not None
        for row in range(len(together)):
            alone = stream(subject.model, row_alone(texts, row))[0]
            worst = worse(worst, gap(together[row][texts.real[row]], alone))
        gaps[name] = worst
    return judged(subject, gaps)


def fused_as_explained(subject: Subject) -> Verdict:
    if not fused_cores(subject.model):
        return Verdict(None, _("there is no fused attention"))
    plain = short(subject)
    passes = {_("without padding"): plain}
    passes |= {name: subject.padded(plain, side, filler=0) for side, name in sides().items()}
    fused = {name: stream(subject.model, texts) for name, texts in passes.items()}
    with explained(subject.model):
        slow = {name: stream(subject.model, texts) for name, texts in passes.items()}
    return judged(subject, {name: gap(fused[name], slow[name]) for name in passes})


def short(subject: Subject) -> Sentences:
    """Three texts, quick to run."""
    return subject.sentences(3, min(12, subject.limit - subject.room))


def sides() -> dict[str, str]:
    return {"left": _("padded on the left"), "right": _("padded on the right")}


@dataclass(frozen=True)
class Check:
    """A question, and the checks that must not have failed before it makes sense to ask it."""

    title: str
    run: Callable[[Subject], Verdict]
    grounds: tuple[str, ...] = ()


CHECKS = {
    "finite": Check(N_("every weight is finite"), finite_weights),
    "tied": Check(N_("embeddings and head tied as stated"), tied_as_stated, ("finite",)),
    "vocabulary": Check(N_("tokenizer and vocabulary sizes agree"), vocabularies_agree),
    "future": Check(N_("blind to the future"), blind_to_the_future, ("finite",)),
    "cache": Check(N_("with the cache = without"), cached_as_uncached, ("finite", "future")),
    "padding": Check(N_("padding is inert"), padding_is_inert, ("finite",)),
    "batch": Check(N_("alone = in a batch"), alone_as_in_a_batch, ("finite", "padding")),
    "fused": Check(N_("fused attention = explained"), fused_as_explained, ("finite",)),
    "saved": Check(N_("saved and loaded bit for bit"), comes_back),
}
