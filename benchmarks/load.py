"""How long a 500 MB model takes to load, and how much memory: ours beside plain reading and beside transformers.

In: nothing; a random model is written to a temporary folder, as theirs and as ours. Out: a table: CPU seconds, seconds and the
peak of memory beyond what was there before, as shares of reading the file and of its size. Each load is a process of its own.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path[0] = str(
    Path(__file__).resolve().parents[1]
)  # not this folder: its tokenizers.py is not the library

SIZE = {
    "vocab_size": 16_000,
    "hidden_size": 1_024,
    "intermediate_size": 2_816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
}
ROUNDS = 5
WAYS = {
    "read": "theirs",
    "load_huggingface": "theirs",
    "load_model": "ours",
    "transformers": "theirs",
}


def main() -> None:
    with TemporaryDirectory() as folder:
        size = write(Path(folder))
        told: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for _ in range(ROUNDS):
            for way, kind in WAYS.items():  # taking turns
                told[way].append(measured(way, Path(folder) / kind, Path(folder) / f"tiny-{kind}"))
        best = {
            way: {name: statistics.median(one[name] for one in rows) for name in rows[0]}
            for way, rows in told.items()
        }
        print(
            f"{size / 1e6:.0f} MB\n| | CPU s | times reading | s | times reading | peak, times the file |\n|---|---|---|---|---|---|"
        )
        for way, one in best.items():
            cpu, wall = one["cpu"] / best["read"]["cpu"], one["seconds"] / best["read"]["seconds"]
            told_as = (
                "transformers (maps the file, reads it later)" if way == "transformers" else way
            )
            print(
                f"| {told_as} | {one['cpu']:.2f} | {cpu:.2f} | {one['seconds']:.2f} | {wall:.2f} | {one['peak'] / size:.2f} |"
            )


def write(folder: Path) -> int:
    """The model as theirs and as ours, and a tiny one of each, by which a process warms up; the size of the weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from qkv.checkpoint.convert import import_folder

    small = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 50,
    }
    for name, sizes in (("", SIZE), ("tiny-", small)):
        with torch.device("meta"):
            model = LlamaForCausalLM(LlamaConfig(**sizes))
        model = model.to_empty(device="cpu")
        for weight in model.parameters():
            torch.nn.init.uniform_(weight, -0.1, 0.1)
        model.save_pretrained(folder / f"{name}theirs", max_shard_size="10GB")
        del model
        import_folder(folder / f"{name}theirs", folder / f"{name}ours", 0)
    return (folder / "theirs" / "model.safetensors").stat().st_size


def measured(way: str, folder: Path, tiny: Path) -> dict[str, float]:
    command = [sys.executable, __file__, way, str(folder), str(tiny)]
    return json.loads(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    )


def load(way: str, folder: Path) -> object:
    match way:
        case "read":
            path = folder / "model.safetensors"
            memory = bytearray(path.stat().st_size)
            with path.open("rb") as file:
                file.readinto(memory)
            return memory
        case "load_huggingface":
            from qkv.checkpoint.huggingface.reader import load_huggingface

            return load_huggingface(folder)
        case "load_model":
            from qkv.checkpoint.folder import load_model

            return load_model(folder)
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder)


def kilobytes(field: str) -> int:
    return next(
        int(line.split()[1])
        for line in Path("/proc/self/status").read_text().splitlines()
        if field in line
    )


def work(way: str, folder: Path, tiny: Path) -> None:
    load(way, tiny)  # torch itself loads more of its parts at the first use
    before, cpu, wall = kilobytes("VmRSS"), time.process_time(), time.perf_counter()
    kept = load(way, folder)
    found = {"cpu": time.process_time() - cpu, "seconds": time.perf_counter() - wall}
    print(json.dumps(found | {"peak": 1_024 * (kilobytes("VmHWM") - before)}))
    del kept


if __name__ == "__main__":
    work(sys.argv[1], *map(Path, sys.argv[2:])) if len(sys.argv) > 1 else main()
