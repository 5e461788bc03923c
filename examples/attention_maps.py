"""Record and draw the attention weights of an imported language model.

python examples/attention_maps.py FOLDER TEXT [PICTURE]
FOLDER is a Hugging Face or qkv folder of a decoder-only model.
"""

import sys

import torch

import qkv
from qkv.evaluate.figures import attention_heatmap
from qkv.explore.record import record


def main() -> None:
    folder, text, picture = [*sys.argv[1:], "attention.png"][:3]
    generator = qkv.load(folder, task="generate")
    ids = generator.encode_prompt(text)
    name = "decoder.layers.*.attn.branch.core.weights"
    with torch.no_grad(), record(generator.model, name) as steps:
        generator.model.decode(torch.tensor([ids]))
    for path, weights in steps.items():  # (1, heads, query, key)
        entropy = -(weights * weights.clamp_min(1e-12).log()).sum(dim=-1).mean(dim=(0, 2))
        print(path, tuple(weights.shape), "mean entropy of each head:")
        print("   ", [round(value, 2) for value in entropy.tolist()])
    tokens = generator.tokenizer.display_tokens(ids)
    attention_heatmap(weights[0], tokens, tokens, picture, "attention weights of the last layer")


if __name__ == "__main__":
    main()
