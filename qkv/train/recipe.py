"""A recipe: everything a training run decides, in one typed value.

In: a YAML file, `--set key=value`, flags. Out: a Recipe, every option with a default and a reason (`--explain`).
Told in docs/training.md, "Recipes".
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Literal

from qkv.errors import QkvError, near_miss
from qkv.language import say


def option(default: Any, en: str, zh: str) -> Any:
    """A default (or what makes one) and its reason in both languages."""
    kind = "default_factory" if callable(default) else "default"
    return field(metadata={"why": (en, zh)}, **{kind: default})


@dataclass(frozen=True)
class Shape:
    """A model by its sizes; for anything else give `model` the path of a model.json."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    layers: int = option(4, "blocks in each stack", "每个栈的层数")
    d_model: int = option(128, "width of the stream", "主干宽度")
    n_heads: int = option(4, "attention heads", "注意力头数")
    d_ff: int = option(512, "width of the feed-forward", "前馈宽度")
    dropout: float = option(0.1, "share of numbers silenced in training", "训练时被置零的比例")
    norm: Literal["layer", "rms", "batch"] = option("layer", "kind of norm", "归一化种类")
    place: Literal["pre", "post"] = option("pre", "norm before each branch (today) or after the sum (2017)",
                                           "归一化在分支之前（今日）或求和之后（2017）")
    positions: Literal["sinusoidal", "learned", "rotary", "none"] = option("rotary", "how order is told", "位置的表达方式")
    activation: Literal["relu", "relu2", "gelu", "gelu_tanh", "silu"] = option("relu", "of the feed-forward", "前馈的激活函数")
    gated: bool = option(False, "a gate in the feed-forward (SwiGLU when silu)", "前馈带门控（silu 即 SwiGLU）")
    bias: bool = option(True, "biases in linear maps", "线性层带偏置")
    qk_norm: bool = option(False, "RMSNorm on queries and keys: higher learning rates stay stable", "对 q、k 归一化，学习率可更高")
    tied: bool = option(True, "the output reads the embedding table", "输出层与词嵌入共用")
    max_len: int = option(512, "longest sentence in tokens", "最长句子（词元）")


@dataclass(frozen=True)
class Recipe:
    """One run. Files and sizes, then learning, then keeping watch."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    task: Literal["translate"] = option("translate", "what is learned", "学什么")
    source: str | None = option(None, "sentences to translate, one a line; or a TSV or JSONL of pairs",
                                "源句，每行一句；或 TSV / JSONL 句对")
    target: str | None = option(None, "their translations, line by line", "对应译文，逐行对齐")
    valid_source: str | None = option(None, "held-out sentences; none: 1 % of the pairs, 1,000 at most",
                                      "验证源句；不给则取 1 %（最多 1000 对）")
    valid_target: str | None = option(None, "their translations", "验证译文")
    target_language: str | None = option(None, "for the score's tokenizer, such as zh; none: guessed", "目标语言（决定评分分词），不给则猜")
    bleu_tokenize: str | None = option(None, "sacrebleu's tokenizer, such as none for tokenised files", "sacrebleu 分词方式，已分词文件用 none")
    tokenizer: Literal["word", "char", "bpe", "bytes", "wordpiece"] = option("bytes", "kind learned from the text", "从文本学习的分词器种类")
    vocab_size: int = option(8_000, "pieces, special tokens included", "词表大小（含特殊词元）")
    shared_vocab: bool = option(True, "one vocabulary for both sides", "两侧共用词表")
    bpe_dropout: float = option(0.0, "merges left out at random in training: rarer pieces get seen", "训练时随机跳过合并，让少见片段也被见到")
    bpe_variants: int = option(8, "encodings kept per sentence with bpe_dropout, one per epoch in turn", "bpe_dropout 时每句保留的编码数，逐轮轮换")
    model: str | Shape = option(  # noqa: RUF009 (a factory is made)
        Shape, "a preset's name, the path of a model.json, or sizes", "预设名、model.json 路径或尺寸")
    calm_start: bool = option(False, "branches begin by adding nothing: steady at high learning rates", "分支初始为零，高学习率更稳")

    seed: int = option(1, "decides every random choice", "决定一切随机选择")
    steps: int = option(2_000, "updates of the weights", "更新步数")
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
    clip: float = option(1.0, "largest norm of the gradient; 0: no limit", "梯度范数上限；0 为不限")
    label_smoothing: float = option(0.1, "share of belief spread over all tokens", "平滑到所有词元的概率份额")
    r_drop: float = option(0.0, "weight of two passes' disagreement (doubles the cost)", "两次前向分歧的权重（开销翻倍）")
    average: int = option(0, "last checkpoints averaged at the end; 0: none", "结束时平均的检查点数；0 为不平均")
    ema: float = option(0.0, "decay of a running average of the weights, such as 0.999; 0: none", "权重滑动平均衰减，如 0.999；0 为不用")

    save_every: int = option(500, "steps between checkpoints", "保存间隔（步）")
    validate_every: int = option(500, "steps between validations", "验证间隔（步）")
    valid_bleu: bool = option(True, "translate the held-out sentences at each validation", "每次验证时翻译并计算 BLEU")
    patience: int = option(0, "validations without a better one before stopping; 0: never", "多少次验证无改进即停；0 为不停")
    beam_size: int = option(4, "of the final score", "最终评分的束宽")
    length_penalty: float = option(0.6, "of the final score, the paper's", "最终评分的长度惩罚（论文值）")

    device: str = option("cpu", "cpu, cuda or mps", "cpu、cuda 或 mps")
    dtype: Literal["float32", "bf16"] = option(
        "float32", "bf16: autocast; does not pay on CPUs without the units", "bf16 自动混合；无相应单元的 CPU 不划算")
    compile: bool = option(False, "torch.compile; does not pay for sentences of varying length", "torch.compile；句长多变时不划算")

    def to_yaml(self) -> str:
        """The recipe as resolved, every option written out."""
        import yaml

        return yaml.safe_dump(asdict(self), sort_keys=False, allow_unicode=True)


# What the numbers may be, from least to most; the rest is right as soon as its type is.
COUNT, AMOUNT, SHARE = (1, inf), (0, inf), (0, 0.999999)
LIMITS = {
    **dict.fromkeys(("layers", "d_model", "n_heads", "d_ff", "max_len", "vocab_size", "bpe_variants", "steps", "batch_tokens",
                     "accumulate", "save_every", "validate_every", "beam_size"), COUNT),
    **dict.fromkeys(("lr", "matrix_lr", "eps", "weight_decay", "warmup", "clip", "r_drop", "average", "patience",
                     "length_penalty"), AMOUNT),
    **dict.fromkeys(("dropout", "bpe_dropout", "beta1", "beta2", "label_smoothing", "ema"), SHARE),
    "decay_share": (0, 1), "seed": (0, 2**31 - 1),
}  # fmt: skip


def read_recipe(path: str | Path | None, settings: Sequence[str] = (), flags: Mapping[str, Any] | None = None) -> Recipe:
    """A YAML file, then `key=value` settings, then flags that were given: the later wins."""
    tree = _load(Path(path)) if path else {}
    for setting in settings:
        key, sign, text = setting.partition("=")
        if not sign:
            raise QkvError(f"--set {setting}", say("no value", "没有值"), say("write key=value", "请写 key=value"))
        _put(tree, key.strip(), _yaml(text, f"--set {setting}"))
    tree.update({key: value for key, value in (flags or {}).items() if value is not None})
    return _checked(tree, str(path or "--set"))


def explain() -> list[tuple[str, str, str]]:
    """Every option as (name, default, reason)."""
    rows = []
    for one in fields(Recipe):
        if one.name == "model":
            rows += [(f"model.{part.name}", str(part.default), say(*part.metadata["why"])) for part in fields(Shape)]
        else:
            rows.append((one.name, str(one.default), say(*one.metadata["why"])))
    return rows


def _load(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise QkvError(path, say("no such recipe", "没有这个配方"), say("see recipes/", "见 recipes/"))
    tree = _yaml(path.read_text(encoding="utf-8-sig"), str(path))
    if not isinstance(tree, dict):
        raise QkvError(path, say("is no list of options", "不是选项列表"), say("write key: value", "请写 key: value"))
    return tree


def _yaml(text: str, where: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        line = str(error).splitlines()[0]
        wrong = say(f"is not YAML ({line})", f"不是 YAML（{line}）")
        raise QkvError(where, wrong, say("write key: value", "请写 key: value")) from None


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        below = tree.get(part, {})
        if not isinstance(below, dict):
            wrong = say(f"{part} is already {below!r}", f"{part} 已是 {below!r}")
            raise QkvError(f"--set {key}", wrong, say("give a name or sizes, not both", "请只给名字，或只给尺寸"))
        tree[part] = dict(below)
        tree = tree[part]
    tree[last] = value


@cache
def _reader() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Recipe)


def _checked(tree: dict[str, Any], where: str) -> Recipe:
    from pydantic import ValidationError

    try:
        recipe: Recipe = _reader().validate_python(tree)
    except ValidationError as error:
        raise QkvError(where, *_explain(error.errors())) from None
    beyond = [*_beyond_limits(recipe), *_beyond_limits(recipe.model, "model.")]
    if beyond:
        raise QkvError(where, ", ".join(wrong for wrong, _ in beyond), ", ".join(right for _, right in beyond))
    return recipe


def _beyond_limits(part: Recipe | Shape | str, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each number that cannot be meant, and what it may be."""
    for name, (least, most) in LIMITS.items():
        value = getattr(part, name, least)
        if not (least <= value <= most and value < inf):  # so that NaN is refused too
            right = say(f"use {least} or more", f"请用不小于 {least} 的数") if most == inf else say(
                f"use {least} to {most}", f"请用 {least} 到 {most} 的数")
            yield say(f"{prefix}{name} cannot be {value}", f"{prefix}{name} 不能是 {value}"), right


def _explain(errors: list[Any]) -> tuple[str, str]:
    """All that is wrong, in one line; of the choice 'text or sizes' only the sizes are worth a word."""
    wrong, right = [], []
    for error in errors:
        place = [str(part) for part in error["loc"] if part not in ("Shape", "str")]
        name = ".".join(place)
        if error["loc"][-1] == "str" and len(error["loc"]) > 1:
            continue
        if error["type"] == "unexpected_keyword_argument":
            wrong.append(say(f"no option '{name}'", f"没有选项 '{name}'"))
            known = fields(Recipe) if len(place) == 1 else fields(Shape)
            right.append(near_miss(place[-1], [one.name for one in known]))
        else:
            wrong.append(say(f"{name} cannot be {error['input']!r}", f"{name} 不能是 {error['input']!r}"))
            right.append(_right(error))
    return ", ".join(wrong), ", ".join(right)


def _right(error: Any) -> str:
    """What would be right, in the person's language; pydantic speaks English only."""
    match error["type"].partition("_")[0]:
        case "literal": return say(f"use {error['ctx']['expected']}", f"请用 {error['ctx']['expected']}")
        case "int": return say("use a whole number", "请用整数")
        case "float": return say("use a number", "请用数字")
        case "bool": return say("use true or false", "请用 true 或 false")
        case "string": return say("use text, in quotes if it looks like something else", "请用文本，必要时加引号")
        case "dataclass": return say("use a preset's name, the path of a model.json, or sizes", "请用预设名、model.json 路径或尺寸")
        case _: return str(error["msg"])
