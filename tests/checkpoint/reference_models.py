"""Tiny random transformers models of every family, and their comparison with imported models."""

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


def randomize(model: nn.Module) -> nn.Module:
    """Random values for all weights and buffers, so that a missing bias or gain is detected."""
    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if "e_score_correction_bias" in name:
                weight.normal_(std=0.1)
            elif "embed_positions" in name and type(model).__name__.startswith("Marian"):
                continue  # a formula, not a weight
            elif name.endswith(("inv_freq", "embed_scale")):
                continue  # formulas too
            elif weight.is_floating_point():
                weight.normal_(std=0.3)
    model.tie_weights()
    return model.eval()


def save_reference(kind: type, config: Any, folder: Path) -> nn.Module:
    """A transformers model with random weights, saved to a folder."""
    model = randomize(kind._from_config(config, attn_implementation="sdpa"))
    model.save_pretrained(folder)
    return model


class Float64Torch:
    """The torch module with float32 replaced by float64."""

    float32 = float = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextlib.contextmanager
def in_float64(model: nn.Module) -> Iterator[nn.Module]:
    """The model in float64, also where it converts to float32: rotary angles, RMSNorm, routers."""
    module = __import__(type(model).__module__, fromlist=["torch"])
    original, float_ = {m: m.torch for m in (module, modeling_rope_utils)}, Tensor.float
    try:
        for patched in original:
            patched.torch = Float64Torch()
        Tensor.float = Tensor.double  # type: ignore[method-assign]
        wide = type(model)._from_config(model.config, attn_implementation="sdpa").double().eval()
        if hasattr(wide, "set_experts_implementation"):
            wide.set_experts_implementation("eager")  # the grouped kernel has no float64
        wide.load_state_dict(model.state_dict())
        for part in wide.modules():
            if type(part).__name__ == "MarianSinusoidalPositionalEmbedding":
                part.weight.data = sinusoids(*part.weight.shape)
            if hasattr(part, "scalar_embed_scale"):
                part.embed_scale = torch.tensor(part.scalar_embed_scale, dtype=torch.float64)
        yield wide
    finally:
        for patched, torch_ in original.items():
            patched.torch = torch_
        Tensor.float = float_  # type: ignore[method-assign]


def sinusoids(length: int, width: int) -> Tensor:
    """Marian's positions in float64: all sines, then all cosines."""
    angles = torch.arange(length)[:, None].double() / 10_000 ** (
        torch.arange(0, width, 2).double() / width
    )
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def load_native(folder: Path, dtype: torch.dtype = torch.float32) -> Transformer:
    return load_huggingface(folder, dtype=dtype).model


def position_ids(attention_mask: Tensor) -> Tensor:
    """Positions that do not count padding."""
    return (attention_mask.long().cumsum(1) - 1).clamp(min=0)


def left_padded(vocab: int, lengths: list[int]) -> tuple[Tensor, Tensor]:
    """Random ids, padded on the left with 0, and their attention mask."""
    ids, attention_mask = (
        torch.zeros(len(lengths), max(lengths), dtype=torch.long),
        torch.zeros(len(lengths), max(lengths)).bool(),
    )
    for row, length in enumerate(lengths):
        ids[row, -length:], attention_mask[row, -length:] = torch.randint(3, vocab, (length,)), True
    return ids, attention_mask


def right_padded(vocab: int, lengths: list[int]) -> tuple[Tensor, Tensor]:
    ids, attention_mask = left_padded(vocab, lengths)
    return ids.flip(1), attention_mask.flip(1)


def assert_close(actual: Tensor, expected: Tensor, atol: float) -> None:
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=0, atol=atol)


# ── Decoders ────────────────────────────────────────────────────────────────────────────────────
@torch.no_grad()
def check_decoder(model: nn.Module, folder: Path) -> None:
    """Logits of a padded batch and greedy text equal the reference, also after an export."""
    ids, mask = left_padded(model.config.vocab_size, [12, 7, 3])
    inputs = {"attention_mask": mask.long(), "position_ids": position_ids(mask)}

    def native_logits(native: Transformer) -> Tensor:
        return native.logits(native.decode(ids, attention_mask=mask))[mask]

    def reference_logits(reference: nn.Module) -> Tensor:
        return reference(ids, **inputs).logits[mask]

    native = load_native(folder)
    assert_close(native_logits(native), reference_logits(model), 1e-4)
    with in_float64(model) as wide:
        expected = reference_logits(wide)
    assert expected.dtype == torch.float64
    assert_close(native_logits(load_native(folder, torch.float64)), expected, 1e-8)
    assert greedy_native(native, ids, mask) == greedy_reference(model, ids, mask)
    auto_class = transformers.AutoModelForCausalLM
    check_export(folder, native, reference_logits, native_logits, auto_class)


def greedy_native(
    model: Transformer, ids: Tensor, attention_mask: Tensor, steps: int = 50
) -> list[list[int]]:
    cache, generated = model.new_cache(), []
    for _ in range(steps):
        hidden = model.decode(ids, cache=cache, attention_mask=attention_mask)
        ids = model.logits(hidden[:, -1:]).argmax(dim=-1)
        attention_mask = torch.ones_like(ids, dtype=torch.bool)
        generated.append(ids[:, 0].tolist())
    return generated


def greedy_reference(
    model: nn.Module, ids: Tensor, attention_mask: Tensor, steps: int = 50
) -> list[list[int]]:
    past, generated, mask = None, [], attention_mask.long()
    positions = position_ids(attention_mask)
    for _ in range(steps):
        out = model(
            ids, attention_mask=mask, position_ids=positions, past_key_values=past, use_cache=True
        )
        ids, past = out.logits[:, -1:].argmax(dim=-1), out.past_key_values
        mask, positions = torch.cat([mask, torch.ones_like(ids)], dim=1), positions[:, -1:] + 1
        generated.append(ids[:, 0].tolist())
    return generated


# ── Encoder-decoders ────────────────────────────────────────────────────────────────────────────
@torch.no_grad()
def check_translator(model: nn.Module, folder: Path) -> None:
    source, attention_mask = right_padded(model.config.vocab_size, [9, 6, 4])
    target = torch.randint(3, model.get_output_embeddings().out_features, (3, 8))
    inputs = {
        "input_ids": source,
        "attention_mask": attention_mask.long(),
        "decoder_input_ids": target,
    }
    native = load_native(folder)

    def native_logits(native: Transformer) -> Tensor:
        return native.logits(native.decode(target, native.encode(source, attention_mask)))

    assert_close(native_logits(native), model(**inputs).logits, 1e-4)
    with in_float64(model) as wide:
        assert_close(native_logits(load_native(folder, torch.float64)), wide(**inputs).logits, 1e-8)
    assert translate_native(native, source, attention_mask) == translate_reference(
        model, source, attention_mask
    )
    check_export(
        folder,
        native,
        lambda reference: reference(**inputs).logits,
        native_logits,
        transformers.AutoModelForSeq2SeqLM,
    )


def translate_native(
    model: Transformer, source: Tensor, attention_mask: Tensor, steps: int = 50
) -> list[list[int]]:
    memory, cache, generated = model.encode(source, attention_mask), model.new_cache(), []
    ids = torch.zeros(len(source), 1, dtype=torch.long)
    for _ in range(steps):
        ids = model.logits(model.decode(ids, memory, cache)).argmax(dim=-1)
        generated.append(ids[:, 0].tolist())
    return generated


def translate_reference(
    model: nn.Module, source: Tensor, attention_mask: Tensor, steps: int = 50
) -> list[list[int]]:
    memory = model.get_encoder()(source, attention_mask=attention_mask.long())
    ids, past, generated = torch.zeros(len(source), 1, dtype=torch.long), None, []
    for _ in range(steps):
        out = model(
            encoder_outputs=memory,
            attention_mask=attention_mask.long(),
            decoder_input_ids=ids,
            past_key_values=past,
            use_cache=True,
        )
        ids, past = out.logits[:, -1:].argmax(dim=-1), out.past_key_values
        generated.append(ids[:, 0].tolist())
    return generated


# ── Encoders ────────────────────────────────────────────────────────────────────────────────────
@torch.no_grad()
def check_encoder(model: nn.Module, folder: Path, pad: int = 0) -> None:
    ids, attention_mask = right_padded(model.config.vocab_size, [12, 7, 3])
    ids = ids.masked_fill(~attention_mask, pad)
    auto = (
        transformers.AutoModelForMaskedLM
        if type(model).__name__.endswith("MaskedLM")
        else transformers.AutoModel
    )
    native = load_native(folder)
    assert_close(
        encode_native(native, ids, attention_mask),
        encode_reference(model, ids, attention_mask),
        1e-4,
    )
    with in_float64(model) as wide:
        assert_close(
            encode_native(load_native(folder, torch.float64), ids, attention_mask),
            encode_reference(wide, ids, attention_mask),
            1e-8,
        )
    check_export(
        folder,
        native,
        lambda reference: encode_reference(reference, ids, attention_mask),
        lambda native: encode_native(native, ids, attention_mask),
        auto,
    )


def encode_native(model: Transformer, ids: Tensor, attention_mask: Tensor) -> Tensor:
    """All outputs at tokens that are not padding: hidden states, logits, the pooled vector."""
    states = model.encode(ids, attention_mask).states
    outputs = [states[attention_mask].flatten()]
    if model.lm_head is not None:
        out = model.logits(states)
        outputs.append((out[attention_mask] if out.ndim == 3 else out).flatten())
    return torch.cat(outputs)


def encode_reference(model: nn.Module, ids: Tensor, attention_mask: Tensor) -> Tensor:
    out = model(ids, attention_mask=attention_mask.long(), output_hidden_states=True)
    outputs = [out.hidden_states[-1][attention_mask].flatten()]
    if "logits" in out:
        outputs.append(out.logits[attention_mask].flatten())
    elif out.get("pooler_output") is not None:
        outputs.append(out.pooler_output.flatten())
    return torch.cat(outputs)


# ── Export ──────────────────────────────────────────────────────────────────────────────────────
def check_export(
    folder: Path, native: Transformer, reference_output: Any, native_output: Any, auto_class: Any
) -> None:
    """transformers loads an export without custom code and computes the same.

    Importing it again gives bit-identical weights.
    """
    loaded, out = load_huggingface(folder, dtype=None), folder / "exported"
    save_huggingface(out, loaded)
    reference, info = auto_class.from_pretrained(out, output_loading_info=True)
    keys = ("missing_keys", "unexpected_keys", "mismatched_keys")
    assert not any(info[kind] for kind in keys), info
    assert_close(native_output(native), reference_output(reference.eval()), 1e-4)
    before, after = loaded.model.state_dict(), load_huggingface(out, dtype=None).model.state_dict()
    assert {name: weight.dtype for name, weight in after.items()} == {
        name: weight.dtype for name, weight in before.items()
    }
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
