"""Run llama.cpp (package cyllama) on a GGUF file, in a process without torch.

Reads {"path", "texts", "ids", "steps"} from standard input; prints the ids of the texts, the logits
after each of the ids, and the greedy tokens after each row.
"""

import json
import sys

from cyllama.llama import llama_cpp


class Model(llama_cpp.LlamaModel):
    n_vocab = 0  # used but not defined by the package


def context(model: Model) -> llama_cpp.LlamaContext:
    params = llama_cpp.LlamaContextParams()
    params.n_ctx = params.n_batch = params.n_ubatch = 64
    params.n_threads = params.n_threads_batch = 1
    params.flash_attn_type = params.type_k = params.type_v = 0  # keys and values in float32
    return llama_cpp.LlamaContext(model, params)


def read(session: llama_cpp.LlamaContext, ids: list[int], past: int) -> list[list[float]]:
    batch = llama_cpp.LlamaBatch(n_tokens=64, embd=0, n_seq_max=1)
    batch.set_batch(ids, past, True)
    session.decode(batch)
    return [list(session.get_logits_ith(position)) for position in range(len(ids))]


def logits_and_greedy(
    model: Model, ids: list[int], steps: int
) -> tuple[list[list[float]], list[int]]:
    session = context(model)
    logits = read(session, ids, 0)
    last, generated = logits[-1], []
    for _ in range(steps):
        generated.append(max(range(len(last)), key=last.__getitem__))
        last = read(session, generated[-1:], len(ids) + len(generated) - 1)[0]
    return logits, generated


def main() -> None:
    llama_cpp.disable_logging()
    llama_cpp.llama_backend_init()
    llama_cpp.ggml_backend_load_all()
    request = json.load(sys.stdin)
    model = Model(request["path"], llama_cpp.LlamaModelParams())
    vocab = model.get_vocab()
    Model.n_vocab = vocab.n_vocab
    results = [logits_and_greedy(model, row, request["steps"]) for row in request["ids"]]
    json.dump(
        {
            "tokens": [vocab.tokenize(text, False, False) for text in request["texts"]],
            "add_bos": vocab.get_add_bos(),
            "logits": [logits for logits, _ in results],
            "greedy": [generated for _, generated in results],
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
