"""Export a language model to Hugging Face format and compare its logits with transformers.

python examples/export_to_transformers.py FOLDER OUT     (needs: pip install 'qkv[bench]')
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import qkv
from qkv.checkpoint.convert import export_folder


def main() -> None:
    folder, out = sys.argv[1:]
    generator = qkv.load(folder, task="generate")
    export_folder(folder, out, n_inputs=0)
    model = AutoModelForCausalLM.from_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    text = "Once upon a time"
    ids = generator.encode_prompt(text)
    print("ids of qkv:         ", ids)
    print("ids of transformers:", tokenizer(text).input_ids)
    with torch.no_grad():
        ours = generator.model.logits(generator.model.decode(torch.tensor([ids])))
        theirs = model(torch.tensor([ids])).logits
    print(f"largest difference of the logits: {(ours - theirs).abs().max():.1e}")


if __name__ == "__main__":
    main()
