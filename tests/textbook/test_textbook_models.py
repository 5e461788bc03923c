"""The textbook's models against torch.nn.Transformer and transformers' Llama, equal weights."""

import pytest
import torch
from torch import nn

from qkv.textbook.decoder_only import DecoderOnly
from qkv.textbook.positions import sinusoidal
from qkv.textbook.transformer import EncoderOnly, Transformer

VOCAB, WIDTH, LAYERS, HEADS, FF = 19, 16, 2, 4, 24


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(3)


def assert_close(ours, theirs, atol=1e-10):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


def randomize(model: nn.Module) -> nn.Module:
    """Random weights, so that a missing bias or norm changes the result."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


def sentences(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.arange(length, length - batch, -1)[:, None]
    return torch.randint(1, VOCAB, (batch, length)), torch.arange(length)[None] < lengths


def torch_model(ours: Transformer) -> nn.Transformer:
    """torch's post-norm encoder-decoder with our weights, without torch's two final norms."""
    sizes = {
        "d_model": WIDTH,
        "nhead": HEADS,
        "dim_feedforward": FF,
        "dropout": 0.0,
        "batch_first": True,
    }
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**sizes), LAYERS, enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**sizes), LAYERS)
    theirs = nn.Transformer(
        WIDTH, HEADS, custom_encoder=encoder, custom_decoder=decoder, batch_first=True
    ).double()
    theirs.load_state_dict(
        {
            name: tensor
            for side in ("encoder", "decoder")
            for i in range(LAYERS)
            for name, tensor in with_torch_names(
                ours.state_dict(), f"{side}.layers.{i}.", side == "decoder"
            ).items()
        }
    )
    return theirs


def with_torch_names(
    state: dict[str, torch.Tensor], prefix: str, has_cross: bool
) -> dict[str, torch.Tensor]:
    new = {}
    for part in ("weight", "bias"):
        for sublayer, theirs in [("attn", "self_attn")] + [("cross", "multihead_attn")] * has_cross:
            maps = [state[f"{prefix}{sublayer}.branch.{letter}_proj.{part}"] for letter in "qkv"]
            new[f"{prefix}{theirs}.in_proj_{part}"] = torch.cat(maps)
            new[f"{prefix}{theirs}.out_proj.{part}"] = state[
                f"{prefix}{sublayer}.branch.o_proj.{part}"
            ]
        new[f"{prefix}linear1.{part}"] = state[f"{prefix}ffn.branch.up_proj.{part}"]
        new[f"{prefix}linear2.{part}"] = state[f"{prefix}ffn.branch.down_proj.{part}"]
        norms = ["attn", "cross", "ffn"] if has_cross else ["attn", "ffn"]
        new |= {
            f"{prefix}norm{n}.{part}": state[f"{prefix}{name}.norm.{part}"]
            for n, name in enumerate(norms, 1)
        }
    return new


def test_the_encoder_decoder_equals_torch_in_logits_and_gradients():
    ours = randomize(Transformer(VOCAB, WIDTH, LAYERS, HEADS, FF))
    theirs = torch_model(ours)
    (source, source_mask), (target, target_mask) = sentences(3, 7), sentences(3, 6)

    def embedded(ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(ids, ours.embed.weight) * 4 + sinusoidal(ids.shape[1], WIDTH)

    hidden = theirs(
        embedded(source),
        embedded(target),
        tgt_mask=torch.ones(6, 6).triu(1).bool(),
        src_key_padding_mask=~source_mask,
        tgt_key_padding_mask=~target_mask,
        memory_key_padding_mask=~source_mask,
    )
    expected = hidden @ ours.embed.weight.T
    logits = ours(source, target, source_mask, target_mask)
    assert_close(logits, expected)
    (our_gradient,) = torch.autograd.grad(logits.sin().sum(), ours.embed.weight)
    (their_gradient,) = torch.autograd.grad(expected.sin().sum(), ours.embed.weight)
    assert_close(our_gradient, their_gradient)


def test_the_encoder_only_model_equals_the_encoder_of_the_encoder_decoder():
    whole, alone = (
        randomize(Transformer(VOCAB, WIDTH, LAYERS, HEADS, FF)),
        EncoderOnly(VOCAB, WIDTH, LAYERS, HEADS, FF),
    )
    state = {
        name: tensor
        for name, tensor in whole.state_dict().items()
        if not name.startswith("decoder")
    }
    alone.double().load_state_dict(state)
    ids, attention_mask = sentences(3, 7)
    assert_close(alone(ids, attention_mask), whole.encode(ids, attention_mask))


def test_a_target_token_does_not_depend_on_later_tokens_and_padding():
    model = randomize(Transformer(VOCAB, WIDTH, LAYERS, HEADS, FF))
    source, source_mask = sentences(2, 7)
    target, attention_mask = torch.randint(1, VOCAB, (2, 6)), torch.ones(2, 6, dtype=torch.bool)
    logits = model(source, target, source_mask, attention_mask)
    target[:, 4:] = (target[:, 4:] + 1) % VOCAB
    source[~source_mask] = 3
    changed = model(source, target, source_mask, attention_mask)
    assert_close(changed[:, :4], logits[:, :4])
    assert (changed[:, 4:] - logits[:, 4:]).abs().max() > 1e-3


def test_a_source_of_padding_only_gives_finite_logits_and_gradients():
    model = randomize(Transformer(VOCAB, WIDTH, LAYERS, HEADS, FF))
    (source, _), (target, target_mask) = sentences(2, 4), sentences(2, 3)
    mask = torch.tensor([[True] * 4, [False] * 4])
    model(source, target, mask, target_mask).square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_parameters_have_the_names_of_qkv_model():
    names = set(Transformer(VOCAB, WIDTH, 1, HEADS, FF).state_dict())
    attention = {f"{letter}_proj.{part}" for letter in "qkvo" for part in ("weight", "bias")}
    feed_forward = {f"{way}_proj.{part}" for way in ("up", "down") for part in ("weight", "bias")}
    sublayers = {"encoder": ("attn", "ffn"), "decoder": ("attn", "cross", "ffn")}
    expected = {"embed.weight"} | {
        f"{side}.layers.0.{sublayer}.{rest}"
        for side, names_of_side in sublayers.items()
        for sublayer in names_of_side
        for rest in {"norm.weight", "norm.bias"}
        | {f"branch.{name}" for name in (feed_forward if sublayer == "ffn" else attention)}
    }
    assert names == expected
    assert set(DecoderOnly(VOCAB, WIDTH, 1, HEADS, 2, FF).state_dict()) == {
        "embed.weight",
        "lm_head.weight",
        "decoder.norm.weight",
        "decoder.layers.0.attn.norm.weight",
        "decoder.layers.0.ffn.norm.weight",
        *(f"decoder.layers.0.attn.branch.{letter}_proj.weight" for letter in "qkvo"),
        *(f"decoder.layers.0.ffn.branch.{way}_proj.weight" for way in ("gate", "up", "down")),
    }


def llama_name(name: str) -> str:
    for ours, theirs in [
        ("attn.norm", "input_layernorm"),
        ("ffn.norm", "post_attention_layernorm"),
        ("attn.branch", "self_attn"),
        ("ffn.branch", "mlp"),
        ("decoder.", "model."),
        ("embed.", "model.embed_tokens."),
    ]:
        name = name.replace(ours, theirs)
    return name


def llama_model(ours: DecoderOnly, n_kv_heads: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=FF,
        num_hidden_layers=LAYERS,
        rms_norm_eps=1e-5,
        num_attention_heads=HEADS,
        num_key_value_heads=n_kv_heads,
        attn_implementation="sdpa",
    )
    theirs = LlamaForCausalLM(config).double().eval()
    theirs.load_state_dict({llama_name(name): tensor for name, tensor in ours.state_dict().items()})
    return theirs


def make_exact(llama: nn.Module) -> None:
    """Compute norms and angles in float64; transformers' Llama uses float32 for any weights."""
    frequencies = 10000 ** (-torch.arange(2, dtype=torch.float64) / 2)
    llama.model.rotary_emb.forward = lambda x, position_ids: tuple(
        function(torch.outer(position_ids[0].double(), frequencies).repeat(1, 2))[None]
        for function in (torch.cos, torch.sin)
    )
    for norm in (module for module in llama.modules() if type(module).__name__ == "LlamaRMSNorm"):
        norm.forward = lambda x, weight=norm.weight: nn.functional.rms_norm(
            x, x.shape[-1:], weight, 1e-5
        )


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_the_decoder_only_model_equals_llama(n_kv_heads):
    ours, (ids, _) = (
        randomize(DecoderOnly(VOCAB, WIDTH, LAYERS, HEADS, n_kv_heads, FF)),
        sentences(2, 9),
    )
    theirs = llama_model(ours, n_kv_heads)
    assert_close(ours(ids), theirs(ids).logits, atol=1e-5)
    make_exact(theirs)
    assert_close(ours(ids), theirs(ids).logits, atol=1e-10)


def test_a_decoder_only_token_does_not_depend_on_later_tokens():
    model, (ids, _) = randomize(DecoderOnly(VOCAB, WIDTH, LAYERS, HEADS, 2, FF)), sentences(2, 9)
    logits = model(ids)
    ids[:, 5:] = (ids[:, 5:] + 1) % VOCAB
    assert_close(model(ids)[:, :5], logits[:, :5])
    assert (model(ids)[:, 5:] - logits[:, 5:]).abs().max() > 1e-3
