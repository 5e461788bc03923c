"""`qkv evaluate --text`: how surprised a language model is by a text.

In: a model folder and a text file, a folder of them, or JSONL. Out: perplexity, bits per byte and tokens/s, every token
predicted once. Told in docs/generation.md, "Scores".
"""

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from qkv.errors import QkvError
from qkv.language import say

if TYPE_CHECKING:
    from qkv.measure.text_perplexity import TextPerplexity


def evaluate_text(folder: Path, text: Path, device: str, as_json: bool) -> None:
    """Perplexity, bits per byte, tokens/s on a whole text."""
    found, seconds, context = measure(folder, text, device)
    if as_json:
        print(json.dumps({
            "perplexity": found.value, "nats_per_token": found.nats_per_token, "bits_per_byte": found.bits_per_byte,
            "tokens": found.tokens, "bytes": found.bytes, "context": context, "seconds": seconds,
            "tokens_per_second": found.tokens / seconds}))
        return
    rate = found.tokens / seconds
    print(say(f"perplexity {found.value:.3f} ({found.nats_per_token:.4f} nats/token, {found.tokens:,} tokens)",
              f"困惑度 {found.value:.3f}（每词元 {found.nats_per_token:.4f} nats，{found.tokens:,} 个词元）"))
    print(say(f"{found.bits_per_byte:.4f} bits/byte ({found.bytes:,} bytes, context {context:,})",
              f"每字节 {found.bits_per_byte:.4f} 比特（{found.bytes:,} 字节，上下文 {context:,}）"))
    print(say(f"{rate:,.0f} tokens/s ({seconds:.2f} s)", f"每秒 {rate:,.0f} 个词元（{seconds:.2f} 秒）"))


def measure(folder: Path, text: Path, device: str) -> tuple["TextPerplexity", float, int]:
    """The surprise, the seconds it took to compute, and how far back each token was read."""
    from qkv.allocator import keep_pages

    keep_pages()  # before torch is imported
    from qkv.data.documents import Documents, count_bytes, keep_documents
    from qkv.measure.text_perplexity import text_perplexity
    from qkv.pipeline.generator import Generator

    documents = Documents([text])
    if not documents.characters:
        raise QkvError(text, say("no text in it", "里面没有文本"), say("give a file with some", "请给有内容的文件"))
    generator = Generator.load(folder, device)
    if generator.first is None:
        raise QkvError(folder, say("no mark between texts", "没有文本之间的标记"),
                       say("its vocabulary needs <eos> or <bos>", "词表中要有 <eos> 或 <bos>"))
    with TemporaryDirectory() as scratch:
        between = generator.ends[0] if generator.ends else generator.first
        ids = keep_documents(Path(scratch) / "ids", documents, generator.tokenizer, between).ids[:-1]  # the end is no text
        start = time.perf_counter()
        found = text_perplexity(generator.model, ids, count_bytes(documents), generator.context, first=generator.first)
        return found, time.perf_counter() - start, generator.context
