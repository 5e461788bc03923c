"""`qkv evaluate --text`: perplexity, bits per byte and throughput of a language model on a text.

The text is a file, a folder or JSONL; every token is predicted once. See docs/generation.md.
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
class PerplexityReport:
    """Perplexity, the seconds it took, the context length, and the loss with int8 quantization."""

    found: "TextPerplexity"
    seconds: float
    context_length: int
    # nats per token with float32 and with int8 weights, in windows without overlap
    int8_losses: tuple[float, float] | None = None


def evaluate_text(folder: Path, text: Path, device: str, as_json: bool, int8: bool = False) -> None:
    """Print perplexity, bits per byte and tokens/s; with `int8`, also for quantized weights."""
    report = measure(folder, text, device, int8)
    found, seconds = report.found, report.seconds
    if as_json:
        figures = {
            "perplexity": found.value,
            "nats_per_token": found.nats_per_token,
            "bits_per_byte": found.bits_per_byte,
            "tokens": found.tokens,
            "bytes": found.bytes,
            "context_length": report.context_length,
            "seconds": seconds,
            "tokens_per_second": found.tokens / seconds,
        }
        if report.int8_losses:
            names = ("nats_per_token_float32", "nats_per_token_int8")
            figures |= dict(zip(names, report.int8_losses, strict=True))
        print(json.dumps(figures))
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
            "{bits_per_byte:.4f} bits/byte ({bytes:,} bytes, context length {context_length:,})",
            bits_per_byte=found.bits_per_byte,
            bytes=found.bytes,
            context_length=report.context_length,
        )
    )
    print(_("throughput {rate:,.0f} tokens/s ({seconds:.2f} s)", rate=rate, seconds=seconds))
    if report.int8_losses:
        float32_value, int8_value = map(math.exp, report.int8_losses)
        print(
            _(
                "int8: perplexity {int8:.3f} instead of {float32:.3f} ({change:+.2%}), "
                "windows without overlap",
                int8=int8_value,
                float32=float32_value,
                change=int8_value / float32_value - 1,
            )
        )


def measure(folder: Path, text: Path, device: str, int8: bool = False) -> PerplexityReport:
    """Tokenize the text as for training, and compute the negative log-likelihood of every token."""
    from qkv.allocator import keep_pages

    keep_pages()  # before torch is imported
    from qkv.data.documents import Documents, count_bytes, store_documents
    from qkv.evaluate.text_perplexity import text_perplexity
    from qkv.pipeline.generator import Generator

    documents = Documents([text])
    if not documents.characters:
        raise QkvError(text, _("empty"), _("give a file with text"))
    generator = Generator.load(folder, device)
    if int8:
        _check_int8(generator)
    if generator.first is None:
        raise QkvError(
            folder, _("no special token between texts"), _("the vocabulary needs <eos> or <bos>")
        )
    with TemporaryDirectory() as scratch:
        separator = generator.ends[0] if generator.ends else generator.first
        stored = store_documents(Path(scratch) / "ids", documents, generator.tokenizer, separator)
        ids = stored.ids[:-1]  # without the separator at the end
        start = time.perf_counter()
        found = text_perplexity(
            generator.model,
            ids,
            count_bytes(documents),
            generator.context_length,
            bos_id=generator.first,
        )
        seconds = time.perf_counter() - start
        losses = _int8_losses(generator, ids) if int8 else None
        return PerplexityReport(found, seconds, generator.context_length, losses)


def _check_int8(generator: "Generator") -> None:
    """Raise, before the text is read, if the model has no int8 kernels."""
    from qkv.engine.supports import supports

    if not supports(generator.model, int8=True):
        raise QkvError("--int8", _("not supported for this architecture"), _("omit it"))


def _int8_losses(generator: "Generator", ids: "np.ndarray") -> tuple[float, float]:
    """Nats per token with float32 and with int8 weights, over all full windows."""
    import torch

    from qkv.engine.packed_model import int8_loss

    length = min(generator.context_length, len(ids))
    if length < 2:
        raise QkvError("--int8", _("the text is too short to compare"), _("give a longer text"))
    rows = torch.from_numpy(ids[: len(ids) // length * length].astype("int64")).view(-1, length)
    return int8_loss(generator.model, rows)
