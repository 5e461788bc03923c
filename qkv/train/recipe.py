"""Training recipes: all options of a run as dataclasses, each with a default and an explanation.

`Recipe` has the options of all tasks; `TranslateRecipe`, `GenerateRecipe` and `EmbedRecipe` add
their own. recipe_reader.py reads them from files and flags. See docs/guides/training.md, "Recipes".
"""

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from qkv.dtypes import canonical_dtype
from qkv.errors import QkvError
from qkv.messages import _
from qkv.model.model_option import complete_option

__all__ = ["EmbedRecipe", "GenerateRecipe", "Recipe", "TranslateRecipe"]


def option(default: Any, explanation: str) -> Any:
    """A field with a default (or a factory) and an explanation, translated by `explain`."""
    kind = "default_factory" if callable(default) else "default"
    return field(metadata={"explanation": explanation}, **{kind: default})


@dataclass(frozen=True)
class Recipe:
    """The options of every training run."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    default_preset: ClassVar[str] = "seq2seq"

    model: Any = option(  # noqa: RUF009
        dict,
        "a preset or a model.json, arguments of the preset, and overrides of the spec by path, "
        "such as decoder.layers.0.mixer.window",
    )
    zero_init_residual: bool = option(
        False,
        "initialize the output projection of every residual branch to zero: stable at high "
        "learning rates",
    )

    seed: int = option(1, "random seed")
    steps: int = option(2_000, "number of optimizer steps")
    max_minutes: float = option(
        0.0,
        "time limit in minutes: the number of steps is reduced to fit and recorded; 0: no limit",
    )
    batch_tokens: int = option(4_096, "tokens of a micro-batch (source + target), padding included")
    gradient_accumulation_steps: int = option(
        1, "gradient accumulation: micro-batches per optimizer step"
    )
    optimizer: Literal["adam", "adamw", "muon"] = option(
        "adamw", "muon: Muon for the matrices of the layers, AdamW for all other parameters"
    )
    lr: float = option(
        1e-3, "peak learning rate; with schedule paper a factor on the paper's formula"
    )
    muon_lr: float = option(0.02, "peak learning rate of Muon")
    beta1: float = option(0.9, "Adam: decay rate of the first moment")
    beta2: float = option(0.98, "Adam: decay rate of the second moment")
    eps: float = option(1e-9, "Adam: epsilon added to the denominator")
    weight_decay: float = option(
        0.0, "weight decay of the matrices; biases, norms and embeddings have none"
    )
    schedule: Literal["paper", "inverse_sqrt", "cosine", "wsd", "constant"] = option(
        "wsd", "learning-rate schedule; wsd: warmup, stable phase, linear decay"
    )
    warmup_steps: int = option(200, "steps of linear learning-rate warmup")
    decay_fraction: float = option(
        0.6, "wsd: fraction of the steps, at the end, in which the learning rate decays"
    )
    decay_changes: tuple[tuple[int, int], ...] = option(
        (),
        "written by max_minutes as (step, total): up to this step the schedule of this total, "
        "then linear decay to the end",
    )
    max_grad_norm: float = option(1.0, "gradient clipping: maximum norm; 0: no clipping")
    router_aux_loss_coef: float = option(
        0.01, "mixture of experts: coefficient of the router's load-balancing loss"
    )
    average_checkpoints: int = option(
        0, "number of last checkpoints to average at the end; 0: no averaging"
    )
    ema_decay: float = option(
        0.0,
        "decay of the exponential moving average (EMA) of the weights, such as 0.999; 0: no EMA",
    )

    save_every: int = option(500, "steps between checkpoints")
    validate_every: int = option(500, "steps between validations")
    patience: int = option(
        0, "early stopping: stop after this many validations without improvement; 0: off"
    )

    threads: int = option(
        0, "CPU threads; 0: the fastest number, measured at the start and recorded"
    )
    device: str = option("cpu", "cpu, cuda or mps")
    dtype: Literal["float32", "bfloat16"] = option(
        "float32",
        "bfloat16 (bf16): mixed precision by autocast; slow on CPUs without bf16 instructions",
    )
    compile: bool = option(False, "torch.compile; slow where sentence lengths vary")

    def __post_init__(self) -> None:
        """Complete `model` and normalize `dtype`; the tokenizers decide the vocabularies."""
        completed = complete_option(self.model, self.default_preset)
        if refused := [name for name in ("vocab_size", "source_vocab_size") if name in completed]:
            wrong = _("comes from the tokenizer")
            raise QkvError(f"model.{refused[0]}", wrong, _("set vocab_size of the recipe"))
        object.__setattr__(self, "model", completed)
        object.__setattr__(self, "dtype", canonical_dtype(self.dtype))

    def to_yaml(self) -> str:
        """Write the resolved recipe with all options, those of the task first.

        Returns:
            YAML that `qkv train` reads.
        """
        import yaml

        tree = asdict(self)
        own = {name: tree[name] for name in type(self).__annotations__ if name in tree}
        return yaml.safe_dump(own | tree, sort_keys=False, allow_unicode=True)


@dataclass(frozen=True)
class TranslateRecipe(Recipe):
    """Train an encoder-decoder on sentence pairs. Options: `qkv train translate --explain`.

    >>> TranslateRecipe(steps=500, model={"preset": "tiny"}).label_smoothing
    0.1
    """

    task: Literal["translate"] = option("translate", "the task")
    source: str | None = option(
        None, "source sentences, one per line; or a TSV or JSONL file of pairs"
    )
    target: str | None = option(None, "target sentences, aligned by line")
    valid_source: str | None = option(
        None, "held-out source sentences; default: 1 percent of the pairs, at most 1,000"
    )
    valid_target: str | None = option(None, "held-out target sentences")
    alignment: str | None = option(
        None,
        "guided alignment: word alignments of the training pairs, lines such as 0-0 1-2 "
        "(Pharaoh format); default: off",
    )
    guided_alignment_weight: float = option(
        0.1,
        "guided alignment: weight of the loss that trains one cross-attention head on the "
        "alignments",
    )
    target_language: str | None = option(
        None, "target language, for sacrebleu's tokenizer, such as zh; default: detected"
    )
    bleu_tokenize: str | None = option(
        None, "sacrebleu's tokenizer, such as none for tokenized files"
    )
    tokenizer: Literal["word", "char", "bpe", "byte_bpe", "wordpiece"] = option(
        "byte_bpe", "kind of tokenizer to train"
    )
    vocab_size: int = option(8_000, "vocabulary size, special tokens included")
    add_prefix_space: bool = option(
        True, "byte_bpe: a word at the start of a text is tokenized as after a space"
    )
    shared_vocab: bool = option(True, "one vocabulary for source and target")
    bpe_dropout: float = option(0.0, "BPE-dropout: probability of skipping a merge in training")
    bpe_variants: int = option(
        8, "BPE-dropout: number of stored encodings per sentence, one per epoch in rotation"
    )
    label_smoothing: float = option(
        0.1, "label smoothing: probability mass spread uniformly over the vocabulary"
    )
    r_drop: float = option(
        0.0,
        "R-Drop: weight of the KL divergence between two passes with different dropout "
        "(doubles the cost); 0: off",
    )
    valid_bleu: bool = option(True, "compute BLEU at each validation")
    metric_for_best_model: Literal["bleu", "loss"] = option(
        "bleu", "validation metric that selects the best model; without valid_bleu: the loss"
    )
    beam_size: int = option(4, "beam size of the final evaluation")
    length_penalty: float = option(0.6, "length penalty of the final evaluation; paper: 0.6")


@dataclass(frozen=True)
class GenerateRecipe(Recipe):
    """Train a causal language model on plain text. Options: `qkv train generate --explain`.

    >>> GenerateRecipe(text=("shakespeare.txt",), tokenizer="char").context_length
    256
    """

    default_preset: ClassVar[str] = "causal-lm"

    task: Literal["generate"] = option("generate", "the task")
    text: tuple[str, ...] = option(
        tuple, "training text: plain text files, folders of them, or JSONL with a field text"
    )
    valid_text: tuple[str, ...] = option(
        tuple, "held-out text; default: the last valid_fraction of the text"
    )
    valid_fraction: float = option(0.05, "fraction of the text held out at its end")
    tokenizer: str = option(
        "byte_bpe",
        "char, byte_bpe, bpe, word or wordpiece, trained on the text; or the path of a "
        "tokenizer.json",
    )
    vocab_size: int = option(8_000, "vocabulary size, special tokens included")
    add_prefix_space: bool = option(
        False, "byte_bpe: a word at the start of a text is tokenized as after a space"
    )
    context_length: int = option(256, "context length: tokens of a training window")
    separate_documents: bool = option(False, "windows do not cross document boundaries")
    init_from: str | None = option(
        None, "model folder whose weights and tokenizer to start from (fine-tuning)"
    )


@dataclass(frozen=True)
class EmbedRecipe(Recipe):
    """Train a sentence encoder: masked language modeling (MLM), then contrastive learning.

    Options: `qkv train embed --explain`.

    >>> EmbedRecipe(pairs="pairs.tsv", batch_groups=64).pooling
    'mean'
    """

    default_preset: ClassVar[str] = "sentence-encoder"

    task: Literal["embed"] = option("embed", "the task")
    text: tuple[str, ...] = option(tuple, "plain text for masked language modeling (MLM)")
    pairs: str | None = option(
        None,
        "groups of sentences with the same meaning, one group per line: TSV, JSONL, or aligned "
        "files such as 'train.*.en'",
    )
    source: str | None = option(None, "instead of pairs: sentences, one per line")
    target: str | None = option(
        None, "sentences with the same meaning, aligned by line, such as translations"
    )
    valid_pairs: str | None = option(
        None, "held-out groups; default: 1 percent of the groups, at most 1,000"
    )
    valid_source: str | None = option(None, "held-out sentences")
    valid_target: str | None = option(None, "held-out sentences with the same meaning")
    hard_negatives: bool = option(
        False, "the third column is a hard negative: similar words, another meaning"
    )
    tokenizer: Literal["word", "char", "bpe", "byte_bpe", "wordpiece"] = option(
        "wordpiece", "kind of tokenizer to train"
    )
    vocab_size: int = option(8_000, "vocabulary size, special tokens included")
    add_prefix_space: bool = option(
        True, "byte_bpe: a word at the start of a text is tokenized as after a space"
    )
    lowercase: bool = option(False, "convert text to lower case")
    pooling: Literal["cls", "mean", "max"] = option(
        "mean", "pooling of token vectors into a sentence vector"
    )
    mlm_steps: int = option(
        0,
        "number of first steps with masked language modeling (MLM); the others use the "
        "contrastive loss",
    )
    mlm_probability: float = option(0.15, "MLM: fraction of tokens to predict")
    whole_word_mask: bool = option(False, "MLM: whole word masking")
    batch_groups: int = option(
        256, "groups of a batch; sentences of other groups are in-batch negatives"
    )
    texts_per_group: int = option(
        2, "sentences of each group in a batch; each two of them are a positive pair"
    )
    temperature: float = option(0.05, "temperature of the contrastive loss (InfoNCE)")
    mini_batch_size: int = option(64, "sentences encoded at a time, sorted by length")
    gradient_checkpointing: bool = option(
        False,
        "gradient checkpointing: keep the activations of one mini-batch at a time; any batch size "
        "fits, for a third more computation",
    )
