"""All supported model families, by the model_type of config.json.

See docs/guides/import-export.md, "Families".
"""

from qkv.checkpoint.families.bert import BERT, DISTILBERT, ROBERTA
from qkv.checkpoint.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from qkv.checkpoint.families.gemma import GEMMA
from qkv.checkpoint.families.gpt2 import GPT2
from qkv.checkpoint.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from qkv.checkpoint.families.marian import BART, MARIAN
from qkv.checkpoint.families.mixtral import MIXTRAL, QWEN3_MOE
from qkv.checkpoint.names import Family

__all__ = ["FAMILIES"]

# In the order of export: the first family that supports all of a spec is used.
FAMILIES: dict[str, Family] = {
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "gemma": GEMMA,
    "mixtral": MIXTRAL,
    "qwen3_moe": QWEN3_MOE,
    "deepseek_v2": DEEPSEEK_V2,
    "deepseek_v3": DEEPSEEK_V3,
    "gpt2": GPT2,
    "bert": BERT,
    "roberta": ROBERTA,
    "distilbert": DISTILBERT,
    "marian": MARIAN,
    "bart": BART,
}
