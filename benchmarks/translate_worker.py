"""A system of benchmarks/translate.py.

python -m benchmarks.translate_worker SYSTEM FOLDER BEAM BATCH
"""

import os
import sys
from pathlib import Path

import numpy as np

from benchmarks.harness import fastest, run_worker
from qkv.threads import set_torch_threads

LENGTH, SENTENCES = 16, {1: 32, 32: 64}  # output tokens; sentences per round, by batch size
THREADS = int(os.environ.get("OMP_NUM_THREADS", 2))


def main() -> None:
    system, folder, beam, batch = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    sources = np.random.default_rng(0).integers(4, 9_000, (SENTENCES[batch], 14))
    sources[:, -1] = 3  # <eos>
    makers = {"qkv": load_qkv, "transformers": load_transformers, "ctranslate2": load_ctranslate2}
    translate = makers[system.split("-")[0]](folder, beam, batch, system.endswith("int8"))

    def round_() -> None:
        for start in range(0, len(sources), batch):
            translate(sources[start : start + batch])

    run_worker(round_)


def load_qkv(folder: str, beam: int, batch: int, int8: bool):
    from qkv.allocator import keep_pages

    keep_pages()

    from qkv.checkpoint.huggingface.reader import load_huggingface
    from qkv.generate.beam import BeamSearchConfig, beam_search
    from qkv.generate.decode import greedy

    set_torch_threads(THREADS)
    model = load_huggingface(f"{folder}/huggingface").model.eval()

    def translate(rows):
        config, limits = BeamSearchConfig(2, 3, 0, beam, 0.6), [LENGTH] * len(rows)
        if beam == 1:
            found = greedy(model, rows.tolist(), config, limits, int8)
        else:
            best = beam_search(model, rows.tolist(), config, limits, int8)
            found = [hypotheses[0].ids for hypotheses in best]
        assert all(len(row) == LENGTH for row in found)

    return translate


def load_transformers(folder: str, beam: int, batch: int, _: bool):
    import torch
    from transformers import MarianMTModel

    from benchmarks.peers import generated

    set_torch_threads(THREADS)
    model = MarianMTModel.from_pretrained(f"{folder}/huggingface").eval()

    def translate(rows):
        found = generated(model, torch.from_numpy(rows), LENGTH, num_beams=beam)
        assert found.shape[1] == LENGTH + 1  # with the start token

    return translate


def load_ctranslate2(folder: str, beam: int, batch: int, _: bool):
    import ctranslate2

    vocabulary = Path(folder, "vocabulary.txt").read_text(encoding="utf-8").split("\n")

    def with_threads(threads: int):
        translator = ctranslate2.Translator(
            f"{folder}/ctranslate2", intra_threads=threads, compute_type="float32"
        )

        def translate(rows):
            tokens = [[vocabulary[i] for i in row] for row in rows]
            lengths = {"max_decoding_length": LENGTH, "min_decoding_length": LENGTH}
            found = translator.translate_batch(
                tokens, beam_size=beam, return_scores=False, **lengths
            )
            assert all(len(result.hypotheses[0]) == LENGTH for result in found)

        return translate

    return fastest([with_threads(threads) for threads in {1, THREADS}])


if __name__ == "__main__":
    main()
