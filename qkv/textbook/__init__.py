"""Plain reference implementations, without fused kernels or batching, independent of the rest.

Tests compare the fast code of qkv with them. Reading order: bpe, positions, masks, attention,
norms, feed_forward, transformer, decoder_only.
"""
