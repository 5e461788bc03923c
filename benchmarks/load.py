"""Time and memory to load a 500 MB model: qkv, transformers, and reading the file.

A random model is written to a temporary folder in both formats. Prints CPU seconds, seconds and
peak memory, also relative to reading the file. Each load is a separate process.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

# Not this folder, whose tokenizers.py would hide the library.
sys.path[0] = str(Path(__file__).resolve().parents[1])

SIZE = {
    "vocab_size": 16_000,
    "hidden_size": 1_024,
    "intermediate_size": 2_816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
}
ROUNDS = 5
LOADERS = {
    "read": "huggingface",
    "load_huggingface": "huggingface",
    "load_model": "qkv",
    "transformers": "huggingface",
}


def main() -> None:
    with TemporaryDirectory() as folder:
        size = write(Path(folder))
        results: dict[str, list[dict[str, float]]] = {loader: [] for loader in LOADERS}
        for _ in range(ROUNDS):
            for loader, kind in LOADERS.items():
                results[loader].append(
                    measured(loader, Path(folder) / kind, Path(folder) / f"tiny-{kind}")
                )
        medians = {
            loader: {name: statistics.median(row[name] for row in rows) for name in rows[0]}
            for loader, rows in results.items()
        }
        print(
            f"{size / 1e6:.0f} MB\n| | CPU s | x reading | s | x reading | peak, x file size |\n"
            "|---|---|---|---|---|---|"
        )
        read = medians["read"]
        for loader, row in medians.items():
            cpu, wall = row["cpu"] / read["cpu"], row["seconds"] / read["seconds"]
            name = "transformers (memory-mapped)" if loader == "transformers" else loader
            print(
                f"| {name} | {row['cpu']:.2f} | {cpu:.2f} | {row['seconds']:.2f} | {wall:.2f} | "
                f"{row['peak'] / size:.2f} |"
            )


def write(folder: Path) -> int:
    """Write a large and a tiny model (for warm-up) in both formats; return the file size."""
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
        model.save_pretrained(folder / f"{name}huggingface", max_shard_size="10GB")
        del model
        import_folder(folder / f"{name}huggingface", folder / f"{name}qkv", 0)
    return (folder / "huggingface" / "model.safetensors").stat().st_size


def measured(loader: str, folder: Path, tiny: Path) -> dict[str, float]:
    command = [sys.executable, __file__, loader, str(folder), str(tiny)]
    return json.loads(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    )


def load(loader: str, folder: Path) -> object:
    match loader:
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


def work(loader: str, folder: Path, tiny: Path) -> None:
    load(loader, tiny)  # warm-up: torch imports more modules at the first use
    before, cpu, wall = kilobytes("VmRSS"), time.process_time(), time.perf_counter()
    loaded = load(loader, folder)
    found = {"cpu": time.process_time() - cpu, "seconds": time.perf_counter() - wall}
    print(json.dumps(found | {"peak": 1_024 * (kilobytes("VmHWM") - before)}))
    del loaded


if __name__ == "__main__":
    work(sys.argv[1], *map(Path, sys.argv[2:])) if len(sys.argv) > 1 else main()
