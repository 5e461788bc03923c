"""SHA-256 of what qkv computes, to check that a refactoring changes no result.

    python tests/fingerprint.py [--out F] [--compare F]

Weights after 20 steps of each task, greedy and beam translations with their scores, sampled texts,
embeddings and exported files; with and without the native library. The digits depend on the CPU:
compare two runs of one machine. Everything goes through the command line and `qkv.load`.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
PAIRS, HELD_OUT = 400, 24
COMMON = """
    steps=20 save_every=20 validate_every=20
    model.layers=2 model.d_model=64 model.n_heads=4 model.d_ff=128
"""
RUNS = {  # name: (task, settings)
    "translate-2017": ("translate", "vocab_size=600 model.positions=sinusoidal model.norm=layer"),
    "translate-today": (
        "translate",
        "vocab_size=600 model.norm=rms model.qk_norm=true model.activation=relu2 model.bias=false "
        "optimizer=muon r_drop=0.5",
    ),
    "generate-conv": (
        "generate",
        "vocab_size=600 model.norm=rms model.convolution=4 model.bias=false ema_decay=0.9",
    ),
    "generate-llama": (
        "generate",
        "vocab_size=600 model.norm=rms model.bias=false model.gated=true model.activation=silu",
    ),
    "generate-char": (
        "generate",
        "tokenizer=char model.positions=learned model.activation=gelu_tanh",
    ),
    "embed-mean": ("embed", "tokenizer=byte_bpe vocab_size=600"),
    "embed-cls": ("embed", "vocab_size=1400 pooling=cls model.activation=gelu"),
}
EXPORTS = {"translate-2017": ("ctranslate2",), "generate-llama": ("huggingface", "gguf")}

USE = r"""
import json, sys
import qkv
kind, folder, sentences = sys.argv[1], sys.argv[2], json.load(open(sys.argv[3], encoding="utf-8"))
model = qkv.load(folder)
if kind == "translate":
    found = [
        [[(t.text, float(t.score).hex()) for t in best]
         for best in model.translate(batch, beam_size=beam, n_best=n)]
        for batch in (sentences, sentences[:1]) for beam, n in ((1, 1), (4, 3))
    ]
elif kind == "generate":
    found = [
        model(sentences[:8], max_new_tokens=24, temperature=t, top_k=k, seed=7)
        for t, k in ((0, 1), (0.9, 20))
    ]
else:
    found = [[float(x).hex() for x in vector] for vector in model(sentences)]
print(json.dumps(found, ensure_ascii=False))
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compare", type=Path)
    options = parser.parse_args()
    found = fingerprint()
    text = json.dumps(found, indent=1, sort_keys=True)
    if options.out:
        options.out.write_text(text + "\n")
    print(text)
    if options.compare is None:
        return 0
    before = json.loads(options.compare.read_text())
    changed = sorted(name for name in {*before, *found} if before.get(name) != found.get(name))
    print(f"{len(changed)} of {len(found)} changed:", *changed)
    return 1 if changed else 0


def fingerprint() -> dict[str, str]:
    """Name -> SHA-256, with the native library and without a compiler."""
    found: dict[str, str] = {}
    for suffix, environment in (("", {}), (" without compiler", {"CXX": "none"})):
        with TemporaryDirectory() as folder:
            for name, digest in digests(Path(folder), environment).items():
                found[name + suffix] = digest
    return found


def digests(folder: Path, environment: dict[str, str]) -> dict[str, str]:
    write_corpus(folder)
    found = {}
    for name, (task, settings) in RUNS.items():
        files = (
            ["--text", "all.txt"]
            if task == "generate"
            else ["--source", "a.zh", "--target", "a.en"]
        )
        options = [f"--set={setting}" for setting in f"{COMMON} {settings}".split()]
        python(folder, environment, "-m", "qkv", "train", task, *files, "--out", name, *options)
        found[f"{name}: weights"] = sha256((folder / name / "model.safetensors").read_bytes())
        output = python(folder, environment, "-c", USE, task, name, "held_out.json")
        found[f"{name}: output"] = sha256(output)
        if task == "translate":  # the texts must be equal even if the last digits of scores change
            texts = [[[text for text, _ in best] for best in batch] for batch in json.loads(output)]
            found[f"{name}: texts"] = sha256(json.dumps(texts).encode())
        for form in EXPORTS.get(name, ()):
            out = folder / (f"{name}.gguf" if form == "gguf" else f"{name}-{form}")
            export = f"-m qkv export {name} --to {form} --inputs 0 --out".split()
            python(folder, environment, *export, str(out))
            written = sorted(
                path
                for path in [out, *out.rglob("*")]
                if path.suffix in (".safetensors", ".bin", ".gguf")
            )
            found[f"{name}: {form}"] = sha256(b"".join(path.read_bytes() for path in written))
    return found


def write_corpus(folder: Path) -> None:
    """Write sentences of the built-in corpus."""
    sys.path.insert(0, str(ROOT))
    from qkv.data.builtin import builtin_pairs

    train, held_out = builtin_pairs()
    for name, lines in (
        ("a.zh", [pair.source for pair in train[:PAIRS]]),
        ("a.en", [pair.target for pair in train[:PAIRS]]),
        ("all.txt", [text for pair in train[:PAIRS] for text in (pair.source, pair.target)]),
    ):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "held_out.json").write_text(
        json.dumps([pair.source for pair in held_out[:HELD_OUT]], ensure_ascii=False),
        encoding="utf-8",
    )


def python(folder: Path, environment: dict[str, str], *arguments: str) -> bytes:
    variables = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "QKV_LANG": "en",
        **environment,
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=variables,
        capture_output=True,
        check=False,
        timeout=600,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments[:6])} failed:\n{done.stderr.decode()}")
    return done.stdout


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
