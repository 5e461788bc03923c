"""The pages of the Python API: which public names are on which page; mkdocstrings fills them in."""

import qkv
import qkv.study
import qkv.train

SUMMARY = """\
The names under `qkv`, `qkv.train` and `qkv.study` are the public API; other modules may change
between versions. `import qkv` is fast: torch is imported when a name that needs it is first
used."""
PAGES = {  # file -> title, first sentence, public names
    "index": ("Python API", "", ["qkv.load", "qkv.QkvError"]),
    "translator": (
        "Translator",
        "Translation with an encoder-decoder model.",
        [
            "qkv.Translator",
            "qkv.generate.config.TranslationConfig",
            "qkv.pipeline.segments.Translation",
        ],
    ),
    "generator": (
        "Generator",
        "Text generation with a decoder-only model.",
        [
            "qkv.Generator",
            "qkv.generate.config.GenerationConfig",
            "qkv.pipeline.generated_sequence.GeneratedSequence",
        ],
    ),
    "embedder": (
        "Embedder",
        "Sentence embeddings with an encoder-only model.",
        ["qkv.Embedder", "qkv.pipeline.embed_options.EmbedOptions", "qkv.pipeline.index.Index"],
    ),
    "tokenizer": (
        "Tokenizer",
        "Text to token ids and back.",
        ["qkv.Tokenizer", "qkv.text.train_tokenizer.train_tokenizer"],
    ),
    "spec-and-presets": (
        "Spec and presets",
        "The architecture of a model; all fields are in [model.json](../model-json.md).",
        ["qkv.preset", "qkv.Spec", "qkv.Custom"],
    ),
    "transformer": ("Transformer", "The model itself, a torch module.", ["qkv.Transformer"]),
    "train": (
        "Training",
        "Training on data in memory or in files; the options are in [Recipes](../recipe.md).",
        [f"qkv.train.{name}" for name in sorted(qkv.train.__all__, key=lambda name: name != "run")],
    ),
    "study": (
        "Studies",
        "Questions answered by experiments: [Studies](../../explanation/studies/index.md).",
        [f"qkv.study.{name}" for name in sorted(qkv.study.__all__, key=lambda name: name != "run")],
    ),
}


def pages() -> dict[str, str]:
    """The text of each page by its file name; every public name is on one of them."""
    modules = {"qkv.study", "qkv.train", "qkv.__version__"}
    public = {f"qkv.{name}" for name in qkv.__all__} - modules
    public |= {f"qkv.train.{name}" for name in qkv.train.__all__}
    public |= {f"qkv.study.{name}" for name in qkv.study.__all__}
    shown = {name for _, _, names in PAGES.values() for name in names}
    assert public <= shown, f"on no page: {sorted(public - shown)}"
    return {f"{file}.md": page(file) for file in PAGES}


def page(file: str) -> str:
    """A title, a sentence, and one mkdocstrings block per name."""
    title, summary, names = PAGES[file]
    blocks = [f"::: {name}" for name in names]
    parts = [SUMMARY, contents()] if file == "index" else [summary]
    return "\n\n".join([f"# {title}", *parts, *blocks]) + "\n"


def contents() -> str:
    """The list of the other pages."""
    return "\n".join(
        f"- [{title}]({file}.md): {', '.join(f'`{name}`' for name in names)}"
        for file, (title, _, names) in PAGES.items()
        if file != "index"
    )
