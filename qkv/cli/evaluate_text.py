"""`qkv evaluate --text`: how surprised a language model is by a text.

In: a model folder and a text file, a folder of them, or JSONL. Out: perplexity, bits per byte and tokens/s, every token
predicted once. Told in docs/generation.md, "Scores".
"""

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from qkv.errors import QkvError
from qkv.messages import _

if TYPE_CHECKING:
    import numpy as np

    from qkv.evaluate.text_perplexity import TextPerplexity
    from qkv.pipeline.generator import Generator


@dataclass(frozen=True)
class Report:
    """All that was measured: the surprise, the seconds it took to compute, how far back each token was read."""

    found: "TextPerplexity"
    seconds: float
    context: int
    small: tuple[float, float] | None = (
        None  # nats per token with whole and with 8-bit matrices, windows side by side
    )


def evaluate_text(folder: Path, text: Path, device: str, as_json: bool, int8: bool = False) -> None:
    """Perplexity, bits per byte, tokens/s on a whole text; with `int8`, what 8-bit matrices cost."""
    report = measure(folder, text, device, int8)
    found, seconds, context = report.found, report.seconds, report.context
    if as_json:
        facts = {
            "perplexity": found.value,
            "nats_per_token": found.nats_per_token,
            "bits_per_byte": found.bits_per_byte,
            "tokens": found.tokens,
            "bytes": found.bytes,
            "context": context,
            "seconds": seconds,
            "tokens_per_second": found.tokens / seconds,
        }
        if report.small:
            facts |= dict(
                zip(("nats_per_token_float32", "nats_per_token_int8"), report.small, strict=True)
            )
        print(json.dumps(facts))
        return
    rate = found.tokens / seconds
    print(
        _(
            "perplexity {value:.3f} ({nats_per_token:.4f} nats/token, {tokens:,} tokens)",
            value=found.value,
            nats_per_token=found.nats_per_token,
            tokens=found.tokens,
        )
    )
    print(
        _(
            "{bits_per_byte:.4f} bits/byte ({bytes:,} bytes, context {context:,})",
            bits_per_byte=found.bits_per_byte,
            bytes=found.bytes,
            context=context,
        )
    )
    print(_("{rate:,.0f} tokens/s ({seconds:.2f} s)", rate=rate, seconds=seconds))
    if report.small:
        whole, small = map(math.exp, report.small)
        print(
            _(
                "int8: perplexity {small:.3f} instead of {whole:.3f} ({small2:+.2%}), windows side by side",
                small=small,
                whole=whole,
                small2=small / whole - 1,
            )
        )


def measure(folder: Path, text: Path, device: str, int8: bool = False) -> Report:
    """Read the text as training does, and let the model predict every token of it."""
    from qkv.allocator import keep_pages

    keep_pages()  # before torch is imported
    from qkv.data.documents import Documents, count_bytes, keep_documents
    from qkv.evaluate.text_perplexity import text_perplexity
    from qkv.pipeline.generator import Generator

    documents = Documents([text])
    if not documents.characters:
        raise QkvError(text, _("no text in it"), _("give a file with some"))
    generator = Generator.load(folder, device)
    if int8:
        _refuse_no_int8(generator)
    if generator.first is None:
        raise QkvError(folder, _("no mark between texts"), _("its vocabulary needs <eos> or <bos>"))
    with TemporaryDirectory() as scratch:
        between = generator.ends[0] if generator.ends else generator.first
        ids = keep_documents(Path(scratch) / "ids", documents, generator.tokenizer, between).ids[
            :-1
        ]  # the end is no text
        start = time.perf_counter()
        found = text_perplexity(
            generator.model, ids, count_bytes(documents), generator.context, first=generator.first
        )
        seconds = time.perf_counter() - start
        return Report(found, seconds, generator.context, _small(generator, ids) if int8 else None)


def _refuse_no_int8(generator: "Generator") -> None:
    """Before the text is read, not after."""
    from qkv.engine.packed_model import supports

    if not supports(generator.model, int8=True):
        raise QkvError("--int8", _("this kind of model has no such step"), _("leave it out"))


def _small(generator: "Generator", ids: "np.ndarray") -> tuple[float, float]:
    """Nats per token with whole and with 8-bit matrices, over all full windows."""
    import torch

    from qkv.engine.packed_model import int8_loss

    width = min(generator.context, len(ids))
    if width < 2:
        raise QkvError("--int8", _("the text is too short to compare on"), _("give more text"))
    rows = torch.from_numpy(ids[: len(ids) // width * width].astype("int64")).view(-1, width)
    return int8_loss(generator.model, rows)
