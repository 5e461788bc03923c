"""Small valid files of every format, written by the package (SentencePiece: by its trainer)."""

import base64
import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import sentencepiece
import torch

from qkv.checkpoint.folder import save_model
from qkv.checkpoint.gguf.export import save_gguf
from qkv.checkpoint.huggingface.export import save_huggingface
from qkv.checkpoint.loaded_model import LoadedModel, PoolingConfig, metadata_of, stored_files
from qkv.model import presets
from qkv.model import spec as s
from qkv.model.guided import AlignmentHead
from qkv.model.transformer import Transformer
from qkv.text.files import write_vocabulary
from qkv.text.special_tokens import SpecialTokenIds
from qkv.text.tokenizer import Tokenizer
from qkv.text.train_tokenizer import train_tokenizer
from qkv.train.state import save_state

TEXTS = ["the cat sat on the mat", "a dog runs", "the dog sat on the cat", "我们学习 attention"]
SIZE = 60  # of the vocabularies
TOKENIZERS = ("word", "char", "bpe", "wordpiece", "byte_bpe")
LLAMA3 = s.LlamaScaling(8.0, 1.0, 4.0, 16)
EXPERTS = s.MixtureOfExperts(3, 2, s.Gated(8))


def specs() -> dict[str, s.Spec]:
    """One small spec of each kind of part, by the Hugging Face family that has it."""
    llama = presets.llama(SIZE, 16, 1, 2, 24, n_kv_heads=1, max_len=32)
    deepseek = presets.deepseek(SIZE, 16, 2, 2, 24, 3, 2, 8)
    gemma = {"scaled_embedding": True, "head": s.LmHead(True)}
    return {
        "llama": replace(llama, positions=s.Rotary(scaling=LLAMA3)),
        "mistral": presets.llama(SIZE, 16, 1, 2, 24, window=8),
        "qwen3": presets.qwen(SIZE, 16, 1, 2, 1, 8, 24),
        "gemma": replace(
            presets.decoder_only(SIZE, 16, 1, s.Attention(2, 1, 8), s.Gated(24, "gelu_tanh")),
            **gemma,
        ),
        "mixtral": presets.llama(SIZE, 16, 1, 2, 8, n_experts=3),
        "deepseek": deepseek,
        "gpt2": presets.gpt2(SIZE, 16, 1, 2, 24),
        "bert": presets.encoder_only(SIZE, 16, 1, 2, 24),
        "marian": presets.marian(SIZE, 16, 1, 2, 24),
    }


def tokenizer(kind: str) -> Tokenizer:
    return train_tokenizer(kind, TEXTS, 300 if kind == "byte_bpe" else SIZE)


def loaded(spec: s.Spec, **tokenizers: Tokenizer) -> LoadedModel:
    torch.manual_seed(0)
    model = Transformer(spec).eval()
    return LoadedModel(model, tokenizers, metadata_of(model), SpecialTokenIds(1, 0, (2, 3)))


def qkv_folder(folder: Path, kind: str = "seq2seq", manifest: bool = False) -> Path:
    """A model folder with all its JSON files; without a manifest, changed files are read."""
    words = tokenizer("bpe")
    spec = {
        "seq2seq": presets.encoder_decoder(words.vocab_size, 16, 1, 2, 24),
        "causal-lm": replace(specs()["llama"], vocab_size=words.vocab_size),
        "sentence-encoder": presets.encoder_only(words.vocab_size, 16, 1, 2, 24),
    }[kind]
    alignment = AlignmentHead(0, 0) if kind == "seq2seq" else None
    stored = stored_files(SpecialTokenIds(1, 0, (2,)), PoolingConfig("mean", True, 16), alignment)
    model = loaded(spec).model
    save_model(folder, model, {"tokenizer": words}, stored)
    if not manifest:
        (folder / "manifest.json").unlink()
    return folder


def huggingface_folders(folder: Path) -> Iterator[Path]:
    """A folder of each family that the package can write, as `qkv export` writes it."""
    for name, spec in specs().items():
        words = tokenizer("wordpiece" if name == "bert" else "bpe")
        spec = replace(spec, vocab_size=words.vocab_size)
        model = loaded(spec, tokenizer=words)
        if name == "bert":
            model = replace(model, pooling=PoolingConfig("mean", True, 16))
        save_huggingface(folder / name, model)
        yield folder / name
    for name, like in {"roberta": "bert", "distilbert": "bert", "bart": "marian"}.items():
        shutil.copytree(folder / like, folder / name)
        path = folder / name / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": name}))
        yield folder / name


def with_index(source: Path, folder: Path) -> Path:
    """The same Hugging Face folder with an index of its weights."""
    shutil.copytree(source, folder)
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index = {"weight_map": {"embed": "model-1.safetensors", "head": "model-1.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def tokenizer_files(folder: Path) -> Iterator[Path]:
    """One file of each tokenizer format but tokenizer.json."""
    for kind in ("bpe", "byte_bpe", "wordpiece"):
        (folder / kind).mkdir(parents=True)
        yield from write_vocabulary(tokenizer(kind), folder / kind)
    for kind in ("bpe", "unigram"):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXTS * 20),
            model_writer=model,
            model_type=kind,
            vocab_size=300,
            byte_fallback=True,
            hard_vocab_limit=False,
            user_defined_symbols=["<sep>"],
            minloglevel=2,
        )
        (folder / f"{kind}.model").write_bytes(model.getvalue())
        yield folder / f"{kind}.model"
    pieces = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b" the", b"at"]
    ranks = [f"{base64.b64encode(piece).decode()} {rank}" for rank, piece in enumerate(pieces)]
    (folder / "small.tiktoken").write_text("\n".join([*ranks, ""]))
    yield folder / "small.tiktoken"


def checkpoint(run: Path) -> Path:
    """A checkpoint folder of a training run."""
    tensors = {
        "model": {"embed.weight": torch.ones(3, 4)},
        "optimizer-0": {"0.step": torch.ones(1)},
    }
    return save_state(
        run, 5, tensors, {"progress": {"epoch": 0}, "optimizers": [{"kind": "AdamW"}]}
    )


def gguf_files(folder: Path) -> Iterator[Path]:
    """A GGUF file of each small architecture."""
    folder.mkdir(parents=True)
    words = tokenizer("byte_bpe")
    for name in ("llama", "qwen3", "mixtral", "gpt2"):
        spec = replace(specs()[name], vocab_size=words.vocab_size)
        dtype = "int8" if name == "qwen3" else "float32"
        save_gguf(folder / f"{name}.gguf", loaded(spec, tokenizer=words), dtype)
        yield folder / f"{name}.gguf"
