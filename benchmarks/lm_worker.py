"""A language model of benchmarks/model.py: python -m benchmarks.lm_worker SYSTEM SHAPE."""

import sys

from benchmarks.harness import run_worker
from qkv.threads import set_torch_threads

LAYERS, D_MODEL, HEADS, VOCAB, BATCH, LENGTH = 6, 384, 6, 8_000, 8, 256


def main() -> None:
    system, shape = sys.argv[1:3]
    if system == "qkv":
        from qkv.allocator import keep_pages

        keep_pages()  # as the qkv command does, before torch is imported
    import torch

    set_torch_threads(2)
    torch.manual_seed(0)
    ids = torch.randint(0, VOCAB, (BATCH, LENGTH + 1))
    model, loss = (load_qkv if system == "qkv" else load_transformers)(shape)
    model.train()

    def round_() -> None:
        for _ in range(3):
            loss(model, ids[:, :-1], ids[:, 1:]).backward()
            model.zero_grad()

    run_worker(round_)


def load_qkv(shape: str):
    from dataclasses import replace

    from qkv.model.presets import decoder_only, gpt2
    from qkv.model.spec import Attention, Dense, Gated, LmHead
    from qkv.model.transformer import Transformer

    if shape == "gpt2":
        spec = gpt2()
        layer = replace(
            spec.decoder.layers[0],
            mixer=Attention(HEADS, HEADS, D_MODEL // HEADS, bias=True, out_bias=True),
            feed_forward=Dense(4 * D_MODEL, "gelu_tanh", bias=True),
            repeat=LAYERS,
        )
        spec = replace(
            spec,
            vocab_size=VOCAB,
            d_model=D_MODEL,
            decoder=replace(spec.decoder, layers=(layer,)),
            dropout=0.0,
        )
    else:
        spec = decoder_only(
            VOCAB, D_MODEL, LAYERS, Attention(HEADS, HEADS, D_MODEL // HEADS), Gated(1_024)
        )
        spec = replace(spec, head=LmHead(tied=True))

    def loss(model, ids, targets):
        return model.loss(model.decode(ids), targets) / targets.numel()

    return Transformer(spec), loss


def load_transformers(shape: str):
    from benchmarks.peers import gpt2, llama, next_token_loss

    if shape == "gpt2":
        return gpt2(VOCAB, 1_024, LAYERS, D_MODEL, HEADS), next_token_loss
    model = llama(VOCAB, LAYERS, D_MODEL, HEADS, d_ff=1_024, tie_word_embeddings=True)
    return model, next_token_loss


main()
