"""Every family of checkpoints we know, by the model_type of its config.json.

In: a model_type. Out: its table of names and the two functions between its config.json and our spec.
Told in docs/convert.md, "Families".
"""

from qkv.checkpoint.families.bert import BERT, DISTILBERT, ROBERTA
from qkv.checkpoint.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from qkv.checkpoint.families.gemma import GEMMA
from qkv.checkpoint.families.gpt2 import GPT2
from qkv.checkpoint.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from qkv.checkpoint.families.marian import BART, MARIAN
from qkv.checkpoint.families.mixtral import MIXTRAL, QWEN3_MOE
from qkv.checkpoint.names import Family

# The order is that of export: the first family that can say all of a spec is taken.
FAMILIES: dict[str, Family] = {
    one.model_type: one
    for one in (
        LLAMA,
        MISTRAL,
        QWEN2,
        QWEN3,
        GEMMA,
        MIXTRAL,
        QWEN3_MOE,
        DEEPSEEK_V2,
        DEEPSEEK_V3,
        GPT2,
        BERT,
        ROBERTA,
        DISTILBERT,
        MARIAN,
        BART,
    )
}
