"""qkv: a Transformer library for translation, language models and sentence embeddings.

    import qkv

    translator = qkv.load("runs/zh-en", task="translate")
    translator(["机器学习很有趣"])  # ['machine learning is interesting']

`load` returns a Translator, a Generator or an Embedder; `train.run` trains one. `preset`, Spec and
Transformer describe and build models, Custom is a part of your own, Tokenizer converts between
text and ids, `study.run` answers a question by experiments, QkvError is an error that the user can
fix.
"""

from collections.abc import Iterable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from qkv.errors import QkvError, near_miss
from qkv.messages import _

if TYPE_CHECKING:
    from qkv import study, train
    from qkv.model.presets import preset
    from qkv.model.spec import Custom, Spec
    from qkv.model.transformer import Transformer
    from qkv.pipeline.embedder import Embedder
    from qkv.pipeline.generator import Generator
    from qkv.pipeline.translator import Translator
    from qkv.text.tokenizer import Tokenizer

__version__ = "0.1.0"
__all__ = [
    "Custom",
    "Embedder",
    "Generator",
    "QkvError",
    "Spec",
    "Tokenizer",
    "Transformer",
    "Translator",
    "__version__",
    "load",
    "preset",
    "study",
    "train",
]
MODULES = {  # imported on first use: torch takes seconds
    "Custom": "qkv.model.spec",
    "Embedder": "qkv.pipeline.embedder",
    "Generator": "qkv.pipeline.generator",
    "Spec": "qkv.model.spec",
    "Tokenizer": "qkv.text.tokenizer",
    "Transformer": "qkv.model.transformer",
    "Translator": "qkv.pipeline.translator",
    "preset": "qkv.model.presets",
}
PIPELINES = {"translate": "Translator", "generate": "Generator", "embed": "Embedder"}  # by task


@overload
def load(
    folder: str | Path,
    device: str = "cpu",
    *,
    task: Literal["translate"],
    int8: bool = False,
    custom: Iterable[str] = (),
) -> "Translator": ...
@overload
def load(
    folder: str | Path,
    device: str = "cpu",
    *,
    task: Literal["generate"],
    int8: bool = False,
    custom: Iterable[str] = (),
) -> "Generator": ...
@overload
def load(
    folder: str | Path,
    device: str = "cpu",
    *,
    task: Literal["embed"],
    int8: bool = False,
    custom: Iterable[str] = (),
) -> "Embedder": ...
@overload
def load(
    folder: str | Path, device: str = "cpu", *, int8: bool = False, custom: Iterable[str] = ()
) -> "Translator | Generator | Embedder": ...
def load(
    folder: str | Path,
    device: str = "cpu",
    *,
    task: str | None = None,
    int8: bool = False,
    custom: Iterable[str] = (),
) -> Any:
    """Load the pipeline of a model folder.

    Example: qkv.load("runs/zh-en", task="translate")("机器学习很有趣")

    Args:
        folder: A folder written by qkv, Hugging Face or `qkv export --to ctranslate2`; the latter
            is loaded without importing torch.
        device: A torch device, such as "cpu" or "cuda".
        task: "translate", "generate" or "embed": another kind of model is an error, and type
            checkers know the returned class. By default the model decides.
        int8: Whether to quantize the weight matrices of a Translator or Generator to int8.
        custom: The import paths of custom parts that the model may use, "package.module:Class".
            A part that model.json names and the caller does not is an error: it would run code.

    Returns:
        A Translator for an encoder-decoder model, a Generator for a decoder-only model, an
        Embedder for an encoder-only model.
    """
    if task is not None and task not in PIPELINES:
        raise QkvError("task", _("no task '{task}'", task=task), near_miss(str(task), PIPELINES))
    if (Path(folder) / "qkv.json").is_file():
        return _load_ctranslate2(Path(folder), device, task, int8)
    from qkv.checkpoint.load import load_folder
    from qkv.model.custom import allow_custom

    with allow_custom(custom) if custom else nullcontext():
        loaded = load_folder(folder, device)
    spec = loaded.model.spec
    name = "Embedder" if spec.decoder is None else "Translator" if spec.encoder else "Generator"
    pipeline = __getattr__(PIPELINES[task] if task else name)
    if not int8:
        return pipeline.of(loaded, folder)
    if pipeline.__name__ == "Embedder":
        raise QkvError("int8", _("embeddings are computed in float32"), _("omit it"))
    return pipeline.of(loaded, folder, int8)


def _load_ctranslate2(folder: Path, device: str, task: str | None, int8: bool) -> Any:
    from qkv.checkpoint.ctranslate2.folder import read_metadata

    if int8:
        wrong = _("a CTranslate2 folder keeps the type that it was exported in")
        raise QkvError("int8", wrong, _("omit it"))
    if task == "embed":
        raise QkvError(folder, _("not an embedding model"), _("use an encoder-only model"))
    kind = read_metadata(folder, PIPELINES[task].lower() if task else "")["kind"]
    return __getattr__(kind.title()).load_ctranslate2(folder, device)


def __getattr__(name: str) -> Any:
    """Import the public names that need torch on first use, so that `import qkv` is fast."""
    if name in ("study", "train"):
        return import_module(f"qkv.{name}")
    if name in MODULES:
        return getattr(import_module(MODULES[name]), name)
    raise AttributeError(f"module 'qkv' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
