"""A recipe: everything a training run decides, in one typed value, every option with a default and a reason.

In: nothing. Out: `Recipe`, what all runs share, and what each task adds: `TranslateRecipe`, `GenerateRecipe`,
`EmbedRecipe`; recipe_reader.py makes them from files and flags. Told in docs/training.md, "Recipes".
"""

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from qkv.errors import QkvError
from qkv.language import say
from qkv.model.model_option import complete_option


def option(default: Any, en: str, zh: str) -> Any:
    """A default (or what makes one) and its reason in both languages."""
    kind = "default_factory" if callable(default) else "default"
    return field(metadata={"why": (en, zh)}, **{kind: default})


@dataclass(frozen=True)
class Recipe:
    """What every run decides: its model, how it learns, how it keeps watch."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    default_preset: ClassVar[str] = "seq2seq"

    model: Any = option(  # noqa: RUF009 (a factory is made)
        dict, "a preset or a model.json, arguments of the preset, and overrides of the spec by path, such as "
        "decoder.layers.0.mixer.window", "预设名或 model.json、预设的参数，以及按路径改写 spec，如 decoder.layers.0.mixer.window")
    calm_start: bool = option(False, "branches begin by adding nothing: steady at high learning rates", "分支初始为零，高学习率更稳")

    seed: int = option(1, "decides every random choice", "决定一切随机选择")
    steps: int = option(2_000, "updates of the weights", "更新步数")
    max_minutes: float = option(0.0, "time limit of the training: fewer steps are taken if they do not fit, and recorded; 0: none",
                                "训练时限（分钟）：放不下时减少步数并记录；0 为不限")
    batch_tokens: int = option(4_096, "source + target tokens of a micro-batch, padding included", "一个小批的词元数（两侧合计，含填充）")
    accumulate: int = option(1, "micro-batches of a step", "每步累积的小批数")
    optimizer: Literal["adam", "adamw", "muon"] = option("adamw", "muon: for matrices, with adamw for the rest", "muon 用于矩阵，其余用 adamw")
    lr: float = option(1e-3, "peak learning rate; with schedule paper a factor, 1 in the paper", "最高学习率；paper 方案下为倍数，论文为 1")
    matrix_lr: float = option(0.02, "peak learning rate of muon", "muon 的最高学习率")
    beta1: float = option(0.9, "Adam's memory of gradients", "Adam 的梯度记忆")
    beta2: float = option(0.98, "Adam's memory of their squares", "Adam 的平方记忆")
    eps: float = option(1e-9, "Adam's guard against division by zero", "Adam 防零")
    weight_decay: float = option(0.0, "pull of matrices towards zero (never of biases, gains, tables)", "矩阵权重衰减（不含偏置、增益、词表）")
    schedule: Literal["paper", "inverse_sqrt", "cosine", "wsd", "constant"] = option(
        "wsd", "wsd: warm up, stay, fall linearly at the end", "wsd：预热、保持、末段线性下降")
    warmup: int = option(200, "steps of rising learning rate", "预热步数")
    decay_share: float = option(0.6, "with wsd: the last share of the steps, in which it falls", "wsd 中下降段所占比例")
    decay_changes: tuple[tuple[int, int], ...] = option(
        (), "written by max_minutes: (step, total): up to that step the schedule of so many steps, from there a straight line to the end",
        "由 max_minutes 写入：（步，总步数）：该步之前按此总步数的方案，之后直线降到结束")
    clip: float = option(1.0, "largest norm of the gradient; 0: no limit", "梯度范数上限；0 为不限")
    balance: float = option(0.01, "weight of the loss that keeps all experts of a model busy", "让模型各专家忙闲均匀的损失的权重")
    average: int = option(0, "last checkpoints averaged at the end; 0: none", "结束时平均的检查点数；0 为不平均")
    ema: float = option(0.0, "decay of a running average of the weights, such as 0.999; 0: none", "权重滑动平均衰减，如 0.999；0 为不用")

    save_every: int = option(500, "steps between checkpoints", "保存间隔（步）")
    validate_every: int = option(500, "steps between validations", "验证间隔（步）")
    patience: int = option(0, "validations without a better one before stopping; 0: never", "多少次验证无改进即停；0 为不停")

    threads: int = option(0, "CPU threads; 0: the fastest number, measured at the start and recorded",
                         "CPU 线程数；0：开始时测出最快的线程数并记录")
    device: str = option("cpu", "cpu, cuda or mps", "cpu、cuda 或 mps")
    dtype: Literal["float32", "bf16"] = option(
        "float32", "bf16: autocast; does not pay on CPUs without the units", "bf16 自动混合；无相应单元的 CPU 不划算")
    compile: bool = option(False, "torch.compile; does not pay for sentences of varying length", "torch.compile；句长多变时不划算")

    def __post_init__(self) -> None:
        """Write `model` out, in whatever form it was given; its vocabularies are those of the tokenizers."""
        completed = complete_option(self.model, self.default_preset)
        if refused := [name for name in ("vocab_size", "source_vocab_size") if name in completed]:
            wrong = say("comes from the tokenizer", "由分词器决定")
            raise QkvError(f"model.{refused[0]}", wrong, say("set vocab_size of the recipe", "请设置配方的 vocab_size"))
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

    task: Literal["translate"] = option("translate", "what is learned", "学什么")
    source: str | None = option(None, "sentences to translate, one a line; or a TSV or JSONL of pairs",
                                "源句，每行一句；或 TSV / JSONL 句对")
    target: str | None = option(None, "their translations, line by line", "对应译文，逐行对齐")
    valid_source: str | None = option(None, "held-out sentences; none: 1 % of the pairs, 1,000 at most",
                                      "验证源句；不给则取 1 %（最多 1000 对）")
    valid_target: str | None = option(None, "their translations", "验证译文")
    alignment: str | None = option(None, "word alignments of the training pairs, lines such as 0-0 1-2 (Pharaoh format); "
                                   "none: no guided alignment", "训练句对的词对齐，每行如 0-0 1-2（Pharaoh 格式）；不给则不做引导对齐")
    guided_alignment_weight: float = option(0.1, "weight of the loss that trains one cross-attention head on these alignments",
                                            "用词对齐训练一个交叉注意力头的损失的权重")
    target_language: str | None = option(None, "for the score's tokenizer, such as zh; none: guessed", "目标语言（决定评分分词），不给则猜")
    bleu_tokenize: str | None = option(None, "sacrebleu's tokenizer, such as none for tokenised files", "sacrebleu 分词方式，已分词文件用 none")
    tokenizer: Literal["word", "char", "bpe", "bytes", "wordpiece"] = option("bytes", "kind learned from the text", "从文本学习的分词器种类")
    vocab_size: int = option(8_000, "pieces, special tokens included", "词表大小（含特殊词元）")
    add_prefix_space: bool = option(True, "with bytes: a word at the beginning of a text is tokenized as after a space",
                                    "bytes 时：文本开头的词与空格后的词切法相同")
    shared_vocab: bool = option(True, "one vocabulary for both sides", "两侧共用词表")
    bpe_dropout: float = option(0.0, "merges left out at random in training: rarer pieces get seen", "训练时随机跳过合并，让少见片段也被见到")
    bpe_variants: int = option(8, "encodings kept per sentence with bpe_dropout, one per epoch in turn", "bpe_dropout 时每句保留的编码数，逐轮轮换")
    label_smoothing: float = option(0.1, "share of belief spread over all tokens", "平滑到所有词元的概率份额")
    r_drop: float = option(0.0, "weight of two passes' disagreement (doubles the cost)", "两次前向分歧的权重（开销翻倍）")
    valid_bleu: bool = option(True, "translate the held-out sentences at each validation", "每次验证时翻译并计算 BLEU")
    best_by: Literal["bleu", "loss"] = option("bleu", "which figure of a validation chooses the best model; without BLEU: the loss",
                                              "按验证的哪个数挑选最佳模型；不算 BLEU 时用损失")
    beam_size: int = option(4, "of the final score", "最终评分的束宽")
    length_penalty: float = option(0.6, "of the final score, the paper's", "最终评分的长度惩罚（论文值）")


@dataclass(frozen=True)
class GenerateRecipe(Recipe):
    """From plain text to a model that writes on."""

    default_preset: ClassVar[str] = "causal-lm"

    task: Literal["generate"] = option("generate", "what is learned", "学什么")
    text: tuple[str, ...] = option(tuple, "files to learn from: plain text, folders of it, or JSONL with a field text",
                                   "训练文本：纯文本文件、文件夹，或含 text 字段的 JSONL")
    valid_text: tuple[str, ...] = option(tuple, "held-out files; none: the last valid_share of the text", "验证文本；不给则取文本最后的 valid_share")
    valid_share: float = option(0.05, "share of the text held out at its end", "文本末尾留作验证的比例")
    tokenizer: str = option("bytes", "char, bytes, bpe, word or wordpiece, learned from the text; or the path of a tokenizer.json",
                            "从文本学习的 char、bytes、bpe、word、wordpiece，或 tokenizer.json 的路径")
    vocab_size: int = option(8_000, "pieces, special tokens included", "词表大小（含特殊词元）")
    add_prefix_space: bool = option(False, "with bytes: a word at the beginning of a text is tokenized as after a space",
                                    "bytes 时：文本开头的词与空格后的词切法相同")
    context: int = option(256, "tokens of a window: how far back the model looks", "窗口的词元数：模型能回看多远")
    separate_documents: bool = option(False, "no window reaches from one document into the next", "窗口不跨文档")
    start_from: str | None = option(None, "a model folder to go on from: its weights and its tokenizer", "从某个模型文件夹继续：用其权重与分词器")


@dataclass(frozen=True)
class EmbedRecipe(Recipe):
    """From plain text and sentences that mean the same to an encoder of sentences."""

    default_preset: ClassVar[str] = "sentence-encoder"

    task: Literal["embed"] = option("embed", "what is learned", "学什么")
    text: tuple[str, ...] = option(tuple, "plain text for the masked tokens of the first steps", "前段掩码训练用的纯文本")
    pairs: str | None = option(None, "sentences of one meaning on each line: TSV, JSONL, or aligned files as in 'train.*.en'",
                               "每行若干同义句：TSV、JSONL，或 'train.*.en' 这样的对齐文件")
    source: str | None = option(None, "instead of pairs: sentences, one a line", "代替 pairs：句子文件，每行一句")
    target: str | None = option(None, "what means the same, line by line, such as translations", "逐行同义的句子，例如译文")
    valid_pairs: str | None = option(None, "held-out sentences of one meaning; none: 1 % of the groups, 1,000 at most", "验证用同义句；不给则取 1 %")
    valid_source: str | None = option(None, "held-out sentences", "验证句子")
    valid_target: str | None = option(None, "what means the same", "与之同义的句子")
    hard_negatives: bool = option(False, "the third column looks alike and means something else", "第三列形似而义异")
    tokenizer: Literal["word", "char", "bpe", "bytes", "wordpiece"] = option("wordpiece", "kind learned from the text", "从文本学习的分词器种类")
    vocab_size: int = option(8_000, "pieces, special tokens included", "词表大小（含特殊词元）")
    add_prefix_space: bool = option(True, "with bytes: a word at the beginning of a text is tokenized as after a space",
                                    "bytes 时：文本开头的词与空格后的词切法相同")
    lowercase: bool = option(False, "capitals are read as small letters", "大写按小写读")
    pooling: Literal["cls", "mean", "max"] = option("mean", "how token vectors become one", "词元向量如何合为一个")
    masked_steps: int = option(0, "the first steps learn masked tokens, the rest pairs", "前若干步学习掩码词元，其余学习同义句")
    mask_share: float = option(0.15, "share of tokens to be guessed", "需要猜测的词元比例")
    whole_words: bool = option(False, "mask all pieces of a word together", "整词掩码")
    batch_pairs: int = option(256, "groups of a batch: each is a wrong answer to all others", "一批的同义句组数：彼此互为反例")
    views: int = option(2, "sentences of a group read together; more teach more where groups are larger",
                        "每组一起读的句数；组大时多读几句学得更多")
    temperature: float = option(0.05, "sharpness of the choice among a batch: lower is sharper", "批内选择的锐度，越低越尖锐")
    chunk: int = option(64, "sentences encoded at a time, those of one length together", "一次编码的句数，长度相近的在一起")
    recompute: bool = option(False, "hold one chunk at a time: batches of any size fit, for a third more work",
                             "每次只保留一块：任意大的批都放得下，多三分之一计算")
