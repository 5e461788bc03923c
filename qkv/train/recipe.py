"""A recipe: everything a training run decides, in one typed value, every option with a default and a reason.

In: nothing. Out: `Recipe`, what all runs share, and what each task adds: `TranslateRecipe`, `GenerateRecipe`,
`EmbedRecipe`; recipe_reader.py makes them from files and flags. Told in docs/training.md, "Recipes".
"""

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from qkv.errors import QkvError
from qkv.messages import _
from qkv.model.model_option import complete_option


def option(default: Any, why: str) -> Any:
    """A default (or what makes one) and its explanation, which `explain` translates."""
    kind = "default_factory" if callable(default) else "default"
    return field(metadata={"why": why}, **{kind: default})


@dataclass(frozen=True)
class Recipe:
    """What every run decides: its model, how it learns, how it keeps watch."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    default_preset: ClassVar[str] = "seq2seq"

    model: Any = option(
        dict,
        "a preset or a model.json, arguments of the preset, and overrides of the spec by path, such as decoder.layers.0.mixer.window",
    )
    calm_start: bool = option(
        False, "branches begin by adding nothing: steady at high learning rates"
    )

    seed: int = option(1, "decides every random choice")
    steps: int = option(2_000, "updates of the weights")
    max_minutes: float = option(
        0.0,
        "time limit of the training: fewer steps are taken if they do not fit, and recorded; 0: none",
    )
    batch_tokens: int = option(4_096, "source + target tokens of a micro-batch, padding included")
    accumulate: int = option(1, "micro-batches of a step")
    optimizer: Literal["adam", "adamw", "muon"] = option(
        "adamw", "muon: for matrices, with adamw for the rest"
    )
    lr: float = option(1e-3, "peak learning rate; with schedule paper a factor, 1 in the paper")
    matrix_lr: float = option(0.02, "peak learning rate of muon")
    beta1: float = option(0.9, "Adam's memory of gradients")
    beta2: float = option(0.98, "Adam's memory of their squares")
    eps: float = option(1e-9, "Adam's guard against division by zero")
    weight_decay: float = option(
        0.0, "pull of matrices towards zero (never of biases, gains, tables)"
    )
    schedule: Literal["paper", "inverse_sqrt", "cosine", "wsd", "constant"] = option(
        "wsd", "wsd: warm up, stay, fall linearly at the end"
    )
    warmup: int = option(200, "steps of rising learning rate")
    decay_share: float = option(0.6, "with wsd: the last share of the steps, in which it falls")
    decay_changes: tuple[tuple[int, int], ...] = option(
        (),
        "written by max_minutes: (step, total): up to that step the schedule of so many steps, from there a straight line to the end",
    )
    clip: float = option(1.0, "largest norm of the gradient; 0: no limit")
    balance: float = option(0.01, "weight of the loss that keeps all experts of a model busy")
    average: int = option(0, "last checkpoints averaged at the end; 0: none")
    ema: float = option(0.0, "decay of a running average of the weights, such as 0.999; 0: none")

    save_every: int = option(500, "steps between checkpoints")
    validate_every: int = option(500, "steps between validations")
    patience: int = option(0, "validations without a better one before stopping; 0: never")

    threads: int = option(
        0, "CPU threads; 0: the fastest number, measured at the start and recorded"
    )
    device: str = option("cpu", "cpu, cuda or mps")
    dtype: Literal["float32", "bf16"] = option(
        "float32", "bf16: autocast; does not pay on CPUs without the units"
    )
    compile: bool = option(False, "torch.compile; does not pay for sentences of varying length")

    def __post_init__(self) -> None:
        """Write `model` out, in whatever form it was given; its vocabularies are those of the tokenizers."""
        completed = complete_option(self.model, self.default_preset)
        if refused := [name for name in ("vocab_size", "source_vocab_size") if name in completed]:
            wrong = _("comes from the tokenizer")
            raise QkvError(f"model.{refused[0]}", wrong, _("set vocab_size of the recipe"))
        object.__setattr__(self, "model", completed)

    def to_yaml(self) -> str:
        """The recipe as resolved, every option written out, the task's own first."""
        import yaml

        tree = asdict(self)
        own = {name: tree[name] for name in type(self).__annotations__ if name in tree}
        return yaml.safe_dump(own | tree, sort_keys=False, allow_unicode=True)


@dataclass(frozen=True)
class TranslateRecipe(Recipe):
    """From pairs of sentences to a translator."""

    task: Literal["translate"] = option("translate", "what is learned")
    source: str | None = option(
        None, "sentences to translate, one a line; or a TSV or JSONL of pairs"
    )
    target: str | None = option(None, "their translations, line by line")
    valid_source: str | None = option(
        None, "held-out sentences; none: 1 percent of the pairs, 1,000 at most"
    )
    valid_target: str | None = option(None, "their translations")
    alignment: str | None = option(
        None,
        "word alignments of the training pairs, lines such as 0-0 1-2 (Pharaoh format); none: no guided alignment",
    )
    guided_alignment_weight: float = option(
        0.1, "weight of the loss that trains one cross-attention head on these alignments"
    )
    target_language: str | None = option(
        None, "for the score's tokenizer, such as zh; none: guessed"
    )
    bleu_tokenize: str | None = option(
        None, "sacrebleu's tokenizer, such as none for tokenised files"
    )
    tokenizer: Literal["word", "char", "bpe", "bytes", "wordpiece"] = option(
        "bytes", "kind learned from the text"
    )
    vocab_size: int = option(8_000, "pieces, special tokens included")
    add_prefix_space: bool = option(
        True, "with bytes: a word at the beginning of a text is tokenized as after a space"
    )
    shared_vocab: bool = option(True, "one vocabulary for both sides")
    bpe_dropout: float = option(0.0, "merges left out at random in training: rarer pieces get seen")
    bpe_variants: int = option(
        8, "encodings kept per sentence with bpe_dropout, one per epoch in turn"
    )
    label_smoothing: float = option(0.1, "share of belief spread over all tokens")
    r_drop: float = option(0.0, "weight of two passes' disagreement (doubles the cost)")
    valid_bleu: bool = option(True, "translate the held-out sentences at each validation")
    best_by: Literal["bleu", "loss"] = option(
        "bleu", "which figure of a validation chooses the best model; without BLEU: the loss"
    )
    beam_size: int = option(4, "of the final score")
    length_penalty: float = option(0.6, "of the final score, the paper's")


@dataclass(frozen=True)
class GenerateRecipe(Recipe):
    """From plain text to a model that writes on."""

    default_preset: ClassVar[str] = "causal-lm"

    task: Literal["generate"] = option("generate", "what is learned")
    text: tuple[str, ...] = option(
        tuple, "files to learn from: plain text, folders of it, or JSONL with a field text"
    )
    valid_text: tuple[str, ...] = option(
        tuple, "held-out files; none: the last valid_share of the text"
    )
    valid_share: float = option(0.05, "share of the text held out at its end")
    tokenizer: str = option(
        "bytes",
        "char, bytes, bpe, word or wordpiece, learned from the text; or the path of a tokenizer.json",
    )
    vocab_size: int = option(8_000, "pieces, special tokens included")
    add_prefix_space: bool = option(
        False, "with bytes: a word at the beginning of a text is tokenized as after a space"
    )
    context: int = option(256, "tokens of a window: how far back the model looks")
    separate_documents: bool = option(False, "no window reaches from one document into the next")
    start_from: str | None = option(
        None, "a model folder to go on from: its weights and its tokenizer"
    )


@dataclass(frozen=True)
class EmbedRecipe(Recipe):
    """From plain text and sentences that mean the same to an encoder of sentences."""

    default_preset: ClassVar[str] = "sentence-encoder"

    task: Literal["embed"] = option("embed", "what is learned")
    text: tuple[str, ...] = option(tuple, "plain text for the masked tokens of the first steps")
    pairs: str | None = option(
        None,
        "sentences of one meaning on each line: TSV, JSONL, or aligned files as in 'train.*.en'",
    )
    source: str | None = option(None, "instead of pairs: sentences, one a line")
    target: str | None = option(None, "what means the same, line by line, such as translations")
    valid_pairs: str | None = option(
        None, "held-out sentences of one meaning; none: 1 percent of the groups, 1,000 at most"
    )
    valid_source: str | None = option(None, "held-out sentences")
    valid_target: str | None = option(None, "what means the same")
    hard_negatives: bool = option(False, "the third column looks alike and means something else")
    tokenizer: Literal["word", "char", "bpe", "bytes", "wordpiece"] = option(
        "wordpiece", "kind learned from the text"
    )
    vocab_size: int = option(8_000, "pieces, special tokens included")
    add_prefix_space: bool = option(
        True, "with bytes: a word at the beginning of a text is tokenized as after a space"
    )
    lowercase: bool = option(False, "capitals are read as small letters")
    pooling: Literal["cls", "mean", "max"] = option("mean", "how token vectors become one")
    masked_steps: int = option(0, "the first steps learn masked tokens, the rest pairs")
    mask_share: float = option(0.15, "share of tokens to be guessed")
    whole_words: bool = option(False, "mask all pieces of a word together")
    batch_pairs: int = option(256, "groups of a batch: each is a wrong answer to all others")
    views: int = option(
        2, "sentences of a group read together; more teach more where groups are larger"
    )
    temperature: float = option(0.05, "sharpness of the choice among a batch: lower is sharper")
    chunk: int = option(64, "sentences encoded at a time, those of one length together")
    recompute: bool = option(
        False, "hold one chunk at a time: batches of any size fit, for a third more work"
    )
