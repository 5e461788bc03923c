"""Check SentencePiece's compiled normalization table (precompiled_charsmap).

The library follows the offsets of the table without bounds, and panics beyond its end. The table is
a size in bytes, a double-array trie of 32-bit units, and the normalized texts, each ended by a 0.
"""

import numpy as np


def is_charsmap(raw: bytes) -> bool:
    """Return whether all offsets of the trie are inside the table."""
    size = int.from_bytes(raw[:4], "little")
    if not 0 < size <= len(raw) - 4 or size % 4:
        return False
    units = np.frombuffer(raw, "<u4", size // 4, offset=4).astype(np.int64)
    texts = raw[4 + size :]
    try:
        texts.decode()
    except UnicodeDecodeError:
        return False
    offsets = (units >> 10) << ((units & 0x200) >> 6)
    nexts = np.arange(len(units)) ^ offsets  # the children are at nexts ^ byte
    labels_end = units >> 31 == 1  # leaves: they hold the index of a text
    if len(units) % 256 or not ((nexts < len(units)) | labels_end).all():
        return False
    has_leaf = (units & 0x100 != 0) & ~labels_end
    starts = units[nexts[has_leaf]] & 0x7FFFFFFF
    return bool((starts < len(texts)).all()) and not any(
        texts[start] & 0xC0 == 0x80 for start in starts.tolist()
    )
