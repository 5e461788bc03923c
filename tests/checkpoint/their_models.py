"""transformers' models for the tests: tiny random ones of every family, saved to a folder, and run beside ours.

In: a configuration of theirs. Out: their model, the folder it was saved to, their answers in float32 or float64.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from torch import Tensor, nn
from transformers import modeling_rope_utils

from qkv.checkpoint.huggingface.export import save_huggingface
from qkv.checkpoint.huggingface.reader import load_huggingface
from qkv.model.transformer import Transformer

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def stir(model: nn.Module) -> nn.Module:
    """No weight stays at its tidy start, so that a forgotten bias, gain or buffer would show."""
    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if "e_score_correction_bias" in name:
                weight.normal_(std=0.1)
            elif "embed_positions" in name and type(model).__name__.startswith("Marian"):
                continue  # a formula, not a weight
            elif (
                not name.endswith(("inv_freq", "embed_scale")) and weight.is_floating_point()
            ):  # formulas too
                weight.normal_(std=0.3)
    model.tie_weights()
    return model.eval()


def their(kind: type, config: Any, folder: Path) -> nn.Module:
    """Their model, stirred and saved."""
    model = stir(kind._from_config(config, attn_implementation="sdpa"))
    model.save_pretrained(folder)
    return model


class Wide:
    """torch, in which the word float32 means float64: their formulas with twice the digits."""

    float32 = float = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextlib.contextmanager
def in_float64(model: nn.Module) -> Iterator[nn.Module]:
    """Their model all in float64, also where it asks for float32: rotary angles, RMSNorm, routers."""
    module = __import__(type(model).__module__, fromlist=["torch"])
    kept, float_ = {one: one.torch for one in (module, modeling_rope_utils)}, Tensor.float
    try:
        for one in kept:
            one.torch = Wide()
        Tensor.float = Tensor.double  # type: ignore[method-assign]
        wide = type(model)._from_config(model.config, attn_implementation="sdpa").double().eval()
        if hasattr(wide, "set_experts_implementation"):
            wide.set_experts_implementation("eager")  # the grouped product knows no float64
        wide.load_state_dict(model.state_dict())
        for part in wide.modules():
            if type(part).__name__ == "MarianSinusoidalPositionalEmbedding":
                part.weight.data = sines(*part.weight.shape)
            if hasattr(part, "scalar_embed_scale"):
                part.embed_scale = torch.tensor(part.scalar_embed_scale, dtype=torch.float64)
        yield wide
    finally:
        for one, torch_ in kept.items():
            one.torch = torch_
        Tensor.float = float_  # type: ignore[method-assign]


def sines(length: int, width: int) -> Tensor:
    """Marian's table in float64: all sines, then all cosines."""
    angles = torch.arange(length)[:, None].double() / 10_000 ** (
        torch.arange(0, width, 2).double() / width
    )
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def ours(folder: Path, dtype: torch.dtype = torch.float32) -> Transformer:
    return load_huggingface(folder, dtype=dtype).model


def places(real: Tensor) -> Tensor:
    """position_ids that do not count padding."""
    return (real.long().cumsum(1) - 1).clamp(min=0)


def left_padded(vocab: int, lengths: list[int]) -> tuple[Tensor, Tensor]:
    """Random sentences, their ends aligned, and which tokens are real; 0 is padding."""
    ids, real = (
        torch.zeros(len(lengths), max(lengths), dtype=torch.long),
        torch.zeros(len(lengths), max(lengths)).bool(),
    )
    for row, length in enumerate(lengths):
        ids[row, -length:], real[row, -length:] = torch.randint(3, vocab, (length,)), True
    return ids, real


def right_padded(vocab: int, lengths: list[int]) -> tuple[Tensor, Tensor]:
    ids, real = left_padded(vocab, lengths)
    return ids.flip(1), real.flip(1)


def assert_close(mine: Tensor, theirs: Tensor, atol: float) -> None:
    torch.testing.assert_close(mine, theirs.to(mine.dtype), rtol=0, atol=atol)


# ── Decoders ─────────────────────────────────────────────────────────────────────────────────────────────────────
@torch.no_grad()
def check_decoder(model: nn.Module, folder: Path) -> None:
    """Logits, padded batches and greedy text equal theirs; then the same for what we export."""
    vocab = model.config.vocab_size
    ids, real = left_padded(vocab, [12, 7, 3])
    mine, theirs = (
        ours(folder),
        model(ids, attention_mask=real.long(), position_ids=places(real)).logits,
    )
    assert_close(mine.logits(mine.decode(ids, real=real))[real], theirs[real], 1e-4)
    with in_float64(model) as wide:
        theirs = wide(ids, attention_mask=real.long(), position_ids=places(real)).logits
    assert theirs.dtype == torch.float64
    exact = ours(folder, torch.float64)
    assert_close(exact.logits(exact.decode(ids, real=real))[real], theirs[real], 1e-8)
    assert greedy_ours(mine, ids, real) == greedy_theirs(model, ids, real)
    check_export(
        folder,
        mine,
        lambda again: again(ids, attention_mask=real.long(), position_ids=places(real)).logits[
            real
        ],
        lambda model: model.logits(model.decode(ids, real=real))[real],
        transformers.AutoModelForCausalLM,
    )


def greedy_ours(model: Transformer, ids: Tensor, real: Tensor, steps: int = 50) -> list[list[int]]:
    cache, said = model.new_cache(), []
    for _ in range(steps):
        ids = model.logits(model.decode(ids, cache=cache, real=real)[:, -1:]).argmax(dim=-1)
        real = torch.ones_like(ids, dtype=torch.bool)
        said.append(ids[:, 0].tolist())
    return said


def greedy_theirs(model: nn.Module, ids: Tensor, real: Tensor, steps: int = 50) -> list[list[int]]:
    past, said, mask, where = None, [], real.long(), places(real)
    for _ in range(steps):
        out = model(
            ids, attention_mask=mask, position_ids=where, past_key_values=past, use_cache=True
        )
        ids, past = out.logits[:, -1:].argmax(dim=-1), out.past_key_values
        mask, where = torch.cat([mask, torch.ones_like(ids)], dim=1), where[:, -1:] + 1
        said.append(ids[:, 0].tolist())
    return said


# ── Encoder-decoders ─────────────────────────────────────────────────────────────────────────────────────────────
@torch.no_grad()
def check_translator(model: nn.Module, folder: Path) -> None:
    source, real = right_padded(model.config.vocab_size, [9, 6, 4])
    target = torch.randint(3, model.get_output_embeddings().out_features, (3, 8))
    inputs = {"input_ids": source, "attention_mask": real.long(), "decoder_input_ids": target}
    mine = ours(folder)

    def answer(one: Transformer) -> Tensor:
        return one.logits(one.decode(target, one.encode(source, real)))

    assert_close(answer(mine), model(**inputs).logits, 1e-4)
    with in_float64(model) as wide:
        assert_close(answer(ours(folder, torch.float64)), wide(**inputs).logits, 1e-8)
    assert translate_ours(mine, source, real) == translate_theirs(model, source, real)
    check_export(
        folder,
        mine,
        lambda again: again(**inputs).logits,
        answer,
        transformers.AutoModelForSeq2SeqLM,
    )


def translate_ours(
    model: Transformer, source: Tensor, real: Tensor, steps: int = 50
) -> list[list[int]]:
    memory, cache, said = model.encode(source, real), model.new_cache(), []
    ids = torch.zeros(len(source), 1, dtype=torch.long)
    for _ in range(steps):
        ids = model.logits(model.decode(ids, memory, cache)).argmax(dim=-1)
        said.append(ids[:, 0].tolist())
    return said


def translate_theirs(
    model: nn.Module, source: Tensor, real: Tensor, steps: int = 50
) -> list[list[int]]:
    memory = model.get_encoder()(source, attention_mask=real.long())
    ids, past, said = torch.zeros(len(source), 1, dtype=torch.long), None, []
    for _ in range(steps):
        out = model(
            encoder_outputs=memory,
            attention_mask=real.long(),
            decoder_input_ids=ids,
            past_key_values=past,
            use_cache=True,
        )
        ids, past = out.logits[:, -1:].argmax(dim=-1), out.past_key_values
        said.append(ids[:, 0].tolist())
    return said


# ── Encoders ─────────────────────────────────────────────────────────────────────────────────────────────────────
@torch.no_grad()
def check_encoder(model: nn.Module, folder: Path, pad: int = 0) -> None:
    ids, real = right_padded(model.config.vocab_size, [12, 7, 3])
    ids = ids.masked_fill(~real, pad)
    auto = (
        transformers.AutoModelForMaskedLM
        if type(model).__name__.endswith("MaskedLM")
        else transformers.AutoModel
    )
    mine = ours(folder)
    assert_close(read_ours(mine, ids, real), read_theirs(model, ids, real), 1e-4)
    with in_float64(model) as wide:
        assert_close(
            read_ours(ours(folder, torch.float64), ids, real), read_theirs(wide, ids, real), 1e-8
        )
    check_export(
        folder,
        mine,
        lambda again: read_theirs(again, ids, real),
        lambda one: read_ours(one, ids, real),
        auto,
    )


def read_ours(model: Transformer, ids: Tensor, real: Tensor) -> Tensor:
    """All they say at real tokens: vectors, logits, the pooled vector."""
    states = model.encode(ids, real).states
    said = [states[real].flatten()]
    if model.lm_head is not None:
        out = model.logits(states)
        said.append((out[real] if out.ndim == 3 else out).flatten())
    return torch.cat(said)


def read_theirs(model: nn.Module, ids: Tensor, real: Tensor) -> Tensor:
    out = model(ids, attention_mask=real.long(), output_hidden_states=True)
    said = [out.hidden_states[-1][real].flatten()]
    if "logits" in out:
        said.append(out.logits[real].flatten())
    elif out.get("pooler_output") is not None:
        said.append(out.pooler_output.flatten())
    return torch.cat(said)


# ── Export ───────────────────────────────────────────────────────────────────────────────────────────────────────
def check_export(folder: Path, mine: Transformer, theirs: Any, answer: Any, auto: Any) -> None:
    """What we write they load without custom code and compute alike; what we read again is bit by bit the same."""
    loaded, out = load_huggingface(folder, dtype=None), folder / "exported"
    save_huggingface(out, loaded)
    again, notes = auto.from_pretrained(out, output_loading_info=True)
    assert not any(
        notes[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
    ), notes
    assert_close(answer(mine), theirs(again.eval()), 1e-4)
    before, back = loaded.model.state_dict(), load_huggingface(out, dtype=None).model.state_dict()
    assert {name: weight.dtype for name, weight in back.items()} == {
        name: weight.dtype for name, weight in before.items()
    }
    assert all(torch.equal(back[name], weight) for name, weight in before.items())
