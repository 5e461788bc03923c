"""`qkv evaluate --text`: perplexity, bits per byte and throughput of a language model on a text.

The text is a file, a folder or JSONL; every token is predicted once. See docs/guides/generation.md.
"""

import math
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from qkv.cli.evaluate_translation import perplexity_line
from qkv.data.documents import Documents, count_bytes, store_documents
from qkv.engine.stepper import supports
from qkv.errors import QkvError
from qkv.evaluate.int8_loss import int8_loss
from qkv.evaluate.text_perplexity import text_perplexity
from qkv.messages import _
from qkv.pipeline.generator import Generator

MAX_CONTEXT_LENGTH = 2**20  # tokens of a window, for positions without a table


def evaluate_text(
    folder: Path, text: Path, device: str, int8: bool, context_length: int | None = None
) -> tuple[dict[str, float], str]:
    """Perplexity, bits per byte and tokens/s; with `int8`, also for quantized weights."""
    figures = measure(folder, text, device, int8, context_length)
    lines = [
        perplexity_line(figures),
        _(
            "{bits_per_byte:.4f} bits/byte ({bytes:,} bytes, context length {context_length:,})",
            **figures,
        ),
        _(
            "throughput {rate:,.0f} tokens/s ({seconds:.2f} s)",
            rate=figures["tokens_per_second"],
            **figures,
        ),
    ]
    if int8:
        value, reference = (
            math.exp(figures[f"nats_per_token_{name}"]) for name in ("int8", "float32")
        )
        lines.append(
            _(
                "int8: perplexity {int8:.3f} instead of {float32:.3f} ({change:+.2%}), "
                "windows without overlap",
                int8=value,
                float32=reference,
                change=value / reference - 1,
            )
        )
    return figures, "\n".join(lines)


def measure(
    folder: Path, text: Path, device: str, int8: bool, context_length: int | None
) -> dict[str, float]:
    """Tokenize the text as for training, and compute the negative log-likelihood of every token."""
    documents = Documents([text])
    if not documents.characters:
        raise QkvError(text, _("empty"), _("give a file with text"))
    generator = Generator.load(folder, device)
    if int8 and not supports(generator.model, int8=True):
        raise QkvError("--int8", _("not supported for this architecture"), _("omit it"))
    if generator.first is None:
        raise QkvError(
            folder, _("no special token between texts"), _("the vocabulary needs <eos> or <bos>")
        )
    length = _window_length(generator, context_length)
    with TemporaryDirectory() as scratch:
        separator = generator.ends[0] if generator.ends else generator.first
        stored = store_documents(Path(scratch) / "ids", documents, generator.tokenizer, separator)
        ids = stored.ids[:-1]  # without the separator at the end
        start = time.perf_counter()
        found = text_perplexity(
            generator.model, ids, count_bytes(documents), length, bos_id=generator.first
        )
        seconds = time.perf_counter() - start
        return {
            "perplexity": found.value,
            "nats_per_token": found.nats_per_token,
            "bits_per_byte": found.bits_per_byte,
            "tokens": found.tokens,
            "bytes": found.bytes,
            "context_length": length,
            "seconds": seconds,
            "tokens_per_second": found.tokens / seconds,
        } | (_int8_losses(generator, ids, length) if int8 else {})


def _window_length(generator: Generator, context_length: int | None) -> int:
    """The tokens of a window; a model with a table of positions has a largest one."""
    if context_length is None:
        return generator.context_length
    decoder = generator.model.decoder
    assert decoder is not None
    limit = MAX_CONTEXT_LENGTH if decoder.limit is None else decoder.limit
    if not 2 <= context_length <= limit:
        wrong = _("cannot be {value}", value=context_length)
        if decoder.limit is not None and context_length > limit:
            wrong = _("this model has {limit:,} positions and cannot extrapolate", limit=limit)
        raise QkvError("--context-length", wrong, _("use 2 to {limit:,}", limit=limit))
    return context_length


def _int8_losses(generator: Generator, ids: np.ndarray, context_length: int) -> dict[str, float]:
    """Nats per token with float32 and with int8 weights, in windows without overlap."""
    length = min(context_length, len(ids))
    if length < 2:
        raise QkvError("--int8", _("the text is too short to compare"), _("give a longer text"))
    rows = torch.from_numpy(ids[: len(ids) // length * length].astype("int64")).view(-1, length)
    losses = int8_loss(generator.model, rows)
    return dict(zip(("nats_per_token_float32", "nats_per_token_int8"), losses, strict=True))
