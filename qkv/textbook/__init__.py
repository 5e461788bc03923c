"""The ideas in their plainest correct form: no fused call, no batching trick, nothing imported from the rest.

In comes what the paper's formulas take, out comes what they give; the fast code of qkv is proven equal to this one.
Read in the order of the text: bpe, positions, masks, attention, norms, feed_forward, transformer, decoder_only.
"""
