"""llama.cpp itself (the package cyllama) on a GGUF file, in a process of its own, for its threads and torch's disturb each other.

In, on standard input: {"path", "texts", "ids", "steps"}. Out: the ids of the texts, the logits after each of the ids, and
the greedy tokens after each row.
"""

import json
import sys

from cyllama.llama import llama_cpp


class Model(llama_cpp.LlamaModel):
    n_vocab = 0  # the package asks for it and forgets to define it


def context(model: Model) -> llama_cpp.LlamaContext:
    wishes = llama_cpp.LlamaContextParams()
    wishes.n_ctx = wishes.n_batch = wishes.n_ubatch = 64
    wishes.n_threads = wishes.n_threads_batch = 1
    wishes.flash_attn_type = wishes.type_k = wishes.type_v = 0  # keys and values in float32
    return llama_cpp.LlamaContext(model, wishes)


def read(session: llama_cpp.LlamaContext, ids: list[int], past: int) -> list[list[float]]:
    batch = llama_cpp.LlamaBatch(n_tokens=64, embd=0, n_seq_max=1)
    batch.set_batch(ids, past, True)
    session.decode(batch)
    return [list(session.get_logits_ith(place)) for place in range(len(ids))]


def answer(model: Model, ids: list[int], steps: int) -> tuple[list[list[float]], list[int]]:
    session = context(model)
    logits = read(session, ids, 0)
    last, said = logits[-1], []
    for _ in range(steps):
        said.append(max(range(len(last)), key=last.__getitem__))
        last = read(session, said[-1:], len(ids) + len(said) - 1)[0]
    return logits, said


def main() -> None:
    llama_cpp.disable_logging()
    llama_cpp.llama_backend_init()
    llama_cpp.ggml_backend_load_all()
    asked = json.load(sys.stdin)
    model = Model(asked["path"], llama_cpp.LlamaModelParams())
    vocab = model.get_vocab()
    Model.n_vocab = vocab.n_vocab
    answers = [answer(model, row, asked["steps"]) for row in asked["ids"]]
    json.dump(
        {
            "tokens": [vocab.tokenize(text, False, False) for text in asked["texts"]],
            "begins": vocab.get_add_bos(),
            "logits": [one for one, _ in answers],
            "greedy": [said for _, said in answers],
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
