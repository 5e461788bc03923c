"""A language model of benchmarks/model.py: python -m benchmarks.lm_worker SYSTEM SHAPE."""

import sys

from benchmarks.harness import run_worker

LAYERS, D_MODEL, HEADS, VOCAB, BATCH, LENGTH = 6, 384, 6, 8_000, 8, 256


def main() -> None:
    system, shape = sys.argv[1:3]
    if system == "qkv":
        from qkv.allocator import keep_pages

        keep_pages()  # as the qkv command does, before torch is imported
    import torch

    torch.set_num_threads(2)
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
    import torch.nn.functional as F
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    if shape == "gpt2":
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCAB,
                n_positions=1_024,
                n_embd=D_MODEL,
                n_layer=LAYERS,
                n_head=HEADS,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
            )
        )
    else:
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCAB,
                hidden_size=D_MODEL,
                intermediate_size=1_024,
                num_hidden_layers=LAYERS,
                num_attention_heads=HEADS,
                num_key_value_heads=HEADS,
                tie_word_embeddings=True,
            )
        )

    def loss(model, ids, targets):
        return F.cross_entropy(
            model(input_ids=ids, use_cache=False).logits.flatten(0, 1), targets.flatten()
        )

    return model, loss


main()
