"""Translating with CTranslate2: the same options and answers as the torch model, and torch is never imported.

In: a folder that `qkv export --to ctranslate2` wrote, then texts. Out: translations. CTranslate2 extends the beams; which
of them wins, and when nothing can overtake it any more, is decided here by our rules. Told in docs/ctranslate2.md.
"""

import json
import math
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.errors import QkvError
from qkv.generate.texts import Hypothesis, Progress, Settings, TextTranslator, Translation
from qkv.language import say
from qkv.text.frame import pair_frame
from qkv.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from qkv.generate.alignment import Link

# CTranslate2 divides by length^penalty, we by ((5 + length) / 6)^alpha. This penalty divides by 1 and so gives plain sums
# of log-probabilities; 0 would do so too, but lets a search end as soon as its first beam has.
NO_PENALTY = 1e-9
IMPOSSIBLE = -1e30  # log-probability of a token that must not be said
MORE_STEPS = 4      # beyond the usual length: by then most searches are settled, others begin again with twice as many


NEEDED = {"all": {"kind", "dtype", "max_len"}, "translator": {"bos", "eos", "pad"},
          "generator": {"begin", "first", "ends"}}  # of qkv.json
WRONG_KIND = {
    "translator": (("not a translator", "不是翻译模型"), ("a translator has an encoder", "翻译模型要有编码器")),
    "generator": (("not a language model", "不是语言模型"), ("one has a decoder alone", "语言模型只有解码器")),
}


class CTranslate2Translator(TextTranslator):
    """translator("我爱机器学习") == "i love machine learning"; lists give lists."""

    def __init__(self, folder: str | Path, device: str = "cpu"):
        folder = Path(folder)
        facts = read_facts(folder, "translator")
        self.source, self.target = read_tokenizers(folder)
        self.source_names, self.names = read_names(folder)
        self.ids = {name: id for id, name in enumerate(self.names)}
        self.frame, self.eos, self.max_len = pair_frame(self.source), facts["eos"], facts["max_len"]
        self.limit = self.max_len - self.frame.size
        self.never_said = [[self.names[id]] for id in {facts["bos"], facts["pad"]} - {self.eos}]
        self.pace = 1.0  # tokens said for each that was read, in the last batch: a guess that costs or saves time only
        self.core = open_core("Translator", folder, device, compute_type(facts, device))

    def translate(
        self, texts: Sequence[str], alignment: bool = False, progress: Progress | None = None, **settings: Any
    ) -> list[list[Translation]]:
        if alignment:
            self.links("", [])
        return super().translate(texts, alignment, progress, **settings)

    def links(self, text: str, ids: Sequence[int]) -> "list[Link]":
        raise QkvError("alignment", say("CTranslate2 does not show where each head looks", "CTranslate2 不显示各注意力头看向哪里"),
                       say("use --engine torch with the folder it was exported from", "请对导出前的文件夹使用 --engine torch"))

    def search_batch(self, rows: list[list[int]], settings: Settings) -> list[list[Hypothesis]]:
        """Searches of too few steps begin again with twice as many; what is settled is what an endless one would find."""
        limits = [settings.longest(len(row), self.max_len) for row in rows]
        found: dict[int, list[Hypothesis]] = {}
        steps = max(limits) if settings.beam_size == 1 else round(self.pace * max(map(len, rows))) + MORE_STEPS
        while waiting := [n for n in range(len(rows)) if n not in found]:
            steps = min(steps, min(limits[n] for n in waiting))
            for n, all_found in zip(waiting, self._search_steps([rows[n] for n in waiting], steps, settings), strict=True):
                best = settled(all_found, self.eos, steps, limits[n], settings)
                if best:
                    found[n] = best
            steps *= 2
        self.pace = sum(len(best[0].ids) for best in found.values()) / sum(map(len, rows))
        return [found[n] for n in range(len(rows))]

    def _search_steps(self, rows: list[list[int]], steps: int, settings: Settings) -> list[list[Hypothesis]]:
        """All that ended within so many steps, and what was alive after the last of them."""
        size = settings.beam_size
        patience = steps + 1 if size > 1 else 1  # with each step at most `size` end: none stops the search
        results = self.core.translate_batch(
            [[self.source_names[id] for id in row] for row in rows],
            beam_size=size, patience=patience, num_hypotheses=size * patience, length_penalty=NO_PENALTY,
            suppress_sequences=self.never_said, return_scores=size > 1 or settings.details, return_end_token=True,
            max_input_length=0, max_decoding_length=steps, min_decoding_length=0)
        return [[self._hypothesis(said, score, settings)
                 for said, score in zip(one.hypotheses, one.scores or [0.0], strict=True) if score > IMPOSSIBLE]
                for one in results]

    def _hypothesis(self, said: list[str], log_prob: float, settings: Settings) -> Hypothesis:
        return Hypothesis([self.ids[name] for name in said], log_prob, log_prob / settings.penalty(len(said)))


def settled(found: list[Hypothesis], eos: int, steps: int, limit: int, settings: Settings) -> list[Hypothesis]:
    """The n_best, if no live hypothesis after `steps` can still beat one of them; else none.

    A live hypothesis only loses probability, and no length penalty is larger than that of the longest translation. Of the
    last step CTranslate2 returns the best `beam_size`: if all of them ended, the live ones rank below the worst of them.
    """
    whole = [one for one in found if one.ids[-1] == eos or steps == limit]
    whole.sort(key=lambda one: (-one.score, len(one.ids)))
    best = whole[: settings.n_best]
    if steps == limit or settings.beam_size == 1:
        return best
    last = [one for one in found if len(one.ids) == steps]
    alive = [one.log_prob for one in last if one.ids[-1] != eos] or [min((one.log_prob for one in last), default=-math.inf)]
    hope = max(alive) / settings.penalty(limit)
    return best if hope == -math.inf or (len(best) == settings.n_best and best[-1].score >= hope) else []


# ── Reading the folder ───────────────────────────────────────────────────────────────────────────────────────────
def read_facts(folder: Path, kind: str) -> dict[str, Any]:
    """qkv.json of a translator or of a generator."""
    if not folder.is_dir():
        raise QkvError(folder, say("no such folder", "没有这个文件夹"), say("check the path", "请检查路径"))
    if not (folder / "qkv.json").is_file() or not (folder / "model.bin").is_file():
        raise QkvError(folder, say("no CTranslate2 model", "不是 CTranslate2 模型"), say(
            "write one: qkv export FOLDER --to ctranslate2 --out NEW", "请先写出：qkv export FOLDER --to ctranslate2 --out NEW"))
    facts = read_json(folder / "qkv.json")
    if not isinstance(facts, dict) or not NEEDED["all"] <= facts.keys():
        raise damaged(folder / "qkv.json")
    if facts["kind"] != kind:
        wrong, right = WRONG_KIND[kind]
        raise QkvError(folder, say(*wrong), say(*right))
    if not NEEDED[kind] <= facts.keys():
        raise damaged(folder / "qkv.json")
    return facts


def read_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    if (folder / "tokenizer.json").exists():
        both = Tokenizer.load(folder / "tokenizer.json")
        return both, both
    return Tokenizer.load(folder / "source.json"), Tokenizer.load(folder / "target.json")


def read_names(folder: Path) -> tuple[list[str], list[str]]:
    """What CTranslate2 calls the ids of each side."""
    shared = folder / "shared_vocabulary.json"
    if shared.exists():
        names = read_json(shared)
        return names, names
    return read_json(folder / "source_vocabulary.json"), read_json(folder / "target_vocabulary.json")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise damaged(path) from None


def damaged(path: Path) -> QkvError:
    return QkvError(path, say("missing or damaged", "缺失或已损坏"), say("export the model again", "请重新导出模型"))


def compute_type(facts: dict[str, Any], device: str) -> str:
    """The arithmetic in which CTranslate2 is right on every CPU: int8 for weights of 7 bits.

    Weights of 8 bits, as exported before, saturate on CPUs without VNNI instructions: they are widened to float32.
    """
    exact = facts.get("weight_bits", 8) <= 7 or device == "cuda"
    return "float32" if facts["dtype"] == "int8" and not exact else facts["dtype"]


def open_core(kind: str, folder: Path, device: str, dtype: str) -> Any:
    """CTranslate2's Translator or Generator with the threads that suit the arithmetic: int8 kernels of tiny models are slower with two."""
    if find_spec("ctranslate2") is None:
        raise QkvError("ctranslate2", say("is not installed", "没有安装"), "pip install 'qkv[convert]'")
    import ctranslate2

    if device not in ("cpu", "cuda") or (device == "cuda" and not ctranslate2.get_cuda_device_count()):
        raise QkvError("device", say(f"no '{device}' here", f"这里没有 '{device}'"), say("use cpu", "请用 cpu"))
    threads = 1 if dtype == "int8" else int(os.environ.get("OMP_NUM_THREADS") or physical_cores())
    try:
        return getattr(ctranslate2, kind)(str(folder), device=device, compute_type=dtype, intra_threads=threads)
    except (RuntimeError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise QkvError(folder, say(f"CTranslate2 cannot read it ({reason})", f"CTranslate2 无法读取（{reason}）"),
                       say("export the model again", "请重新导出模型")) from None


def physical_cores() -> int:
    """Cores this process may use; two threads of one core share its arithmetic and count once."""
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    files = [Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") for cpu in mine]
    return len({file.read_text() if file.exists() else str(file) for file in files})
