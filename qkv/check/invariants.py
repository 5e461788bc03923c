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
from qkv.language import say
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
def prove(model: Transformer, tokenizers: Mapping[str, Tokenizer] | None = None,
          reload: Reload | None = None) -> list[Finding]:
    """All checks, causes before consequences: a check whose ground has failed is not asked."""
    return prove_subject(Subject(model, tokenizers or {}, reload))


@torch.no_grad()
def prove_subject(subject: Subject) -> list[Finding]:
    found: dict[str, Finding] = {}
    for name, check in CHECKS.items():
        missing = [found[ground] for ground in check.grounds if found[ground].holds is False]
        verdict = unasked(missing[0]) if missing else tried(check.run, subject)
        found[name] = Finding(verdict.holds, verdict.words, verdict.difference, name, say(*check.title))
    return list(found.values())


def unasked(ground: Finding) -> Verdict:
    return Verdict(None, say(f"not asked before this is mended: {ground.title}", f"须先修好：{ground.title}"))


def tried(run: Callable[[Subject], Verdict], subject: Subject) -> Verdict:
    """A model that stops with an error has not held the check either."""
    try:
        return run(subject)
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        return Verdict(False, say(f"the pass stops with {reason}", f"运行中止：{reason}"))


def judged(subject: Subject, gaps: Mapping[str, float]) -> Verdict:
    """Passes compared under different conditions: the worst one is named if rounding does not explain it."""
    where, worst = max(gaps.items(), key=lambda one: one[1] if one[1] == one[1] else torch.inf)
    if worst <= subject.tolerance:
        return Verdict(True, say(f"worst difference {worst:.0e}", f"最大差异 {worst:.0e}"), worst)
    return Verdict(False, say(f"{where}, the result differs by {worst:.1e}", f"{where}，结果相差 {worst:.1e}"), worst)


# ---- the weights and what lies beside them -------------------------------------------------------------------------

def finite_weights(subject: Subject) -> Verdict:
    counts = {name: int((~one.isfinite()).sum()) for name, one in subject.original.state_dict().items()}
    broken = ", ".join(f"{name}: {count}" for name, count in counts.items() if count)
    if broken:
        return Verdict(False, say(f"NaN or infinity in {broken}; take an earlier checkpoint",
                                  f"存在 NaN 或无穷：{broken}；请改用更早的检查点"))
    numbers = sum(weight.numel() for weight in subject.original.parameters())
    return Verdict(True, say(f"{numbers:,} numbers", f"{numbers:,} 个数"))


def tied_as_stated(subject: Subject) -> Verdict:
    head, stated = subject.model.lm_head, subject.model.spec.head
    if not isinstance(head, LmHead) or stated is None:
        return Verdict(None, say("this model has no head over the vocabulary", "此模型没有词表输出层"))
    if isinstance(stated, s.LmHead) and not stated.tied:
        return apart(head, subject.model.embed.weight)
    x = torch.randn(1, 4, subject.model.spec.d_model, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = x.to(subject.device, subject.dtype)
    through_table = F.linear(head.prepared(x), subject.model.embed.weight, head.bias)
    difference = gap(subject.model.logits(x), through_table)
    if difference <= subject.tolerance:
        return Verdict(True, say("one table, as model.json says", "同一张表，与 model.json 一致"), difference)
    return Verdict(False, say("model.json says one table, but the head uses another; is lm_head.weight a leftover?",
                              "model.json 声明共享，但输出层用的是另一张表；lm_head.weight 是遗留的吗？"), difference)


def apart(head: LmHead, table: Tensor) -> Verdict:
    if head.weight is None or torch.equal(head.weight, table):
        return Verdict(False, say("model.json says two tables, but they are the same numbers; set head.tied to true",
                                  "model.json 声明两张表，但数值完全相同；请把 head.tied 设为 true"))
    return Verdict(True, say("two tables, as model.json says", "两张表，与 model.json 一致"))


def vocabularies_agree(subject: Subject) -> Verdict:
    spec = subject.model.spec
    source = spec.source_vocab_size or spec.vocab_size
    rows = {"tokenizer": min(spec.vocab_size, source), "source": source, "target": spec.vocab_size}
    if not subject.tokenizers:
        return Verdict(None, say("there is no tokenizer in the folder", "文件夹中没有分词器"))
    told = [disagreement(name, one, rows[name]) for name, one in subject.tokenizers.items()]
    if any(told):
        return Verdict(False, say(", ", "，").join(filter(None, told)))
    sizes = ", ".join(f"{one.vocab_size:,} / {rows[name]:,}" for name, one in subject.tokenizers.items())
    return Verdict(True, say(f"tokens / rows: {sizes}", f"词元数 / 行数：{sizes}"))


def disagreement(name: str, tokenizer: Tokenizer, rows: int) -> str:
    """Too many tokens have no row; a few spare rows are usual, for tables are rounded up to a handy size."""
    tokens = tokenizer.vocab_size
    if tokens > rows:
        return say(f"{name}: {tokens:,} tokens, but the model has only {rows:,} rows; it is another model's tokenizer",
                   f"{name}：有 {tokens:,} 个词元，而模型只有 {rows:,} 行；这是别的模型的分词器")
    if rows - tokens > max(128, rows // 50):
        return say(f"{name}: {tokens:,} tokens for {rows:,} rows; is it this model's tokenizer?",
                   f"{name}：只有 {tokens:,} 个词元，模型却有 {rows:,} 行；是此模型的分词器吗？")
    return ""


def comes_back(subject: Subject) -> Verdict:
    if subject.reload is None:
        return Verdict(None, say("no way to save was given", "未给出保存方法"))
    model, tokenizers = subject.reload(subject.original, subject.tokenizers)
    before, after = subject.original.state_dict(), model.state_dict()
    changed = [name for name in {**before, **after} if name not in before or name not in after
               or before[name].dtype != after[name].dtype or not torch.equal(bits(before[name]), bits(after[name]))]
    changed += ["model.json"] * (model.spec != subject.original.spec)
    changed += [name for name, one in subject.tokenizers.items()
                if name not in tokenizers or tokenizers[name].fingerprint != one.fingerprint]
    if changed:
        return Verdict(False, say(f"came back changed: {', '.join(changed)}", f"加载后有变化：{', '.join(changed)}"))
    return Verdict(True, say(f"{len(before)} tensors", f"{len(before)} 个张量"))


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8)  # NaN equals itself only so


# ---- the passes ----------------------------------------------------------------------------------------------------

def blind_to_the_future(subject: Subject) -> Verdict:
    stack, length = subject.model.spec.decoder or subject.model.spec.encoder, min(16, subject.limit)
    assert stack is not None
    if stack.sees != "past":
        return Verdict(None, say("it sees the whole text, as model.json says", "它看全文，与 model.json 一致"))
    texts = subject.sentences(1, length).keep(torch.zeros(length, dtype=torch.long, device=subject.device))
    later = torch.ones(length, length, dtype=torch.bool, device=subject.device).triu(1)  # row r: all tokens after r
    changed = Sentences(texts.ids.where(~later, (texts.ids + 1) % subject.model.spec.vocab_size), source=texts.source)
    before, after = stream(subject.model, texts), stream(subject.model, changed)         # (length, length, d_model)
    moved = (after - before).abs().amax(dim=-1).masked_fill(later, 0.0) / before.abs().max().clamp(min=1e-30)
    first = int((moved > subject.tolerance).any(dim=0).int().argmax())
    return judged(subject, {say(f"when only later tokens change, token {first} is not the same",
                                f"仅后面的词元改变时，第 {first} 个词元也变了"): float(moved.max())})


def cached_as_uncached(subject: Subject) -> Verdict:
    stack = subject.model.spec.decoder
    if stack is None or stack.sees != "past":
        return Verdict(None, say("it does not decode step by step", "它不逐步解码"))
    texts = subject.sentences(3, subject.limit)
    left = subject.padded(subject.sentences(3, subject.limit - subject.room), "left", filler=0)
    gaps = {say("without padding", "无填充时"): cache_gap(subject.model, texts)}
    return judged(subject, gaps | {say("with padding on the left", "左侧填充时"): cache_gap(subject.model, left)})


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
        seen = slice(None) if real is None else real  # what a padded place gives is nobody's concern
        if real is None or real.any():
            worst = worse(worst, gap(step[seen], whole[:, piece][seen]))
    return worst


def worse(one: float, other: float) -> float:
    """The greater difference; NaN is the worst."""
    return other if other != other or other > one else one


def padding_is_inert(subject: Subject) -> Verdict:
    gaps, last = {}, min(subject.model.spec.vocab_size, subject.model.spec.source_vocab_size or 1 << 62) - 1
    for side, name in sides().items():
        one, other = (subject.padded(short(subject), side, filler) for filler in (0, last))
        ours, theirs = stream(subject.model, one), stream(subject.model, other)
        if not (ours.isfinite().all() and theirs.isfinite().all()):
            return Verdict(False, say(f"{name}, padding gives NaN or infinity", f"{name}，填充产生 NaN 或无穷"))
        gaps[name + say(" with other tokens", "且内容不同时")] = gap(ours[one.real], theirs[one.real])
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
        return Verdict(None, say("there is no fused attention", "没有融合注意力"))
    plain = short(subject)
    passes = {say("without padding", "无填充时"): plain}
    passes |= {name: subject.padded(plain, side, filler=0) for side, name in sides().items()}
    fused = {name: stream(subject.model, texts) for name, texts in passes.items()}
    with explained(subject.model):
        slow = {name: stream(subject.model, texts) for name, texts in passes.items()}
    return judged(subject, {name: gap(fused[name], slow[name]) for name in passes})


def short(subject: Subject) -> Sentences:
    """Three texts, quick to run."""
    return subject.sentences(3, min(12, subject.limit - subject.room))


def sides() -> dict[str, str]:
    return {"left": say("padded on the left", "左侧填充"), "right": say("padded on the right", "右侧填充")}


@dataclass(frozen=True)
class Check:
    """A question, and the checks that must not have failed before it makes sense to ask it."""

    title: tuple[str, str]
    run: Callable[[Subject], Verdict]
    grounds: tuple[str, ...] = ()


CHECKS = {
    "finite": Check(("every weight is finite", "权重全部有限"), finite_weights),
    "tied": Check(("embeddings and head tied as stated", "嵌入与输出层的共享与声明一致"), tied_as_stated, ("finite",)),
    "vocabulary": Check(("tokenizer and vocabulary sizes agree", "分词器与词表大小一致"), vocabularies_agree),
    "future": Check(("blind to the future", "看不到未来"), blind_to_the_future, ("finite",)),
    "cache": Check(("with the cache = without", "有缓存 = 无缓存"), cached_as_uncached, ("finite", "future")),
    "padding": Check(("padding is inert", "填充不影响结果"), padding_is_inert, ("finite",)),
    "batch": Check(("alone = in a batch", "单独 = 成批"), alone_as_in_a_batch, ("finite", "padding")),
    "fused": Check(("fused attention = explained", "融合注意力 = 逐步注意力"), fused_as_explained, ("finite",)),
    "saved": Check(("saved and loaded bit for bit", "保存再加载逐位相同"), comes_back),
}
