"""`qkv demo`: the whole story in three minutes: learn, score, translate, look."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.errors import QkvError
from qkv.language import say

TRAIN, VALID, ALIGNMENT, SETTINGS = "train.tsv", "valid.tsv", "train.align", "recipe.json"  # JSON is YAML too
RECIPE = {
    "tokenizer": "bytes", "vocab_size": 2_000, "seed": 1, "steps": 600, "batch_tokens": 4_096, "target_language": "en",
    "model": {"layers": 3, "d_model": 128, "n_heads": 4, "d_ff": 512, "dropout": 0.05, "positions": "rotary",
              "activation": "relu2", "bias": False, "qk_norm": True, "max_len": 128},
    "calm_start": True, "optimizer": "muon", "matrix_lr": 0.02, "lr": 4e-3, "warmup": 50, "decay_share": 0.7,
    "save_every": 240, "validate_every": 240, "beam_size": 4, "guided_alignment_weight": 0.1,
}  # fmt: skip


def demo(
    out: Annotated[Path, typer.Option(help=say("folder of the run", "训练文件夹"))] = Path("runs/demo"),
    again: Annotated[bool, typer.Option(help=say("train anew even if there is a model", "即使已有模型也重新训练"))] = False,
) -> int:
    trained = (out / "model.json").is_file()
    if trained and not again and sys.stdin.isatty():
        again = not typer.confirm(say(f"{out} holds a trained model. Use it?", f"{out} 已有训练好的模型。直接使用？"), default=True)
    if again or not trained:
        code = _train(out, again)
        if code:
            return code
    else:
        print(say(f"Using the model in {out}; --again trains anew.", f"使用 {out} 中的模型；--again 重新训练。"), file=sys.stderr)
    _show(out)
    return 0


def _train(out: Path, again: bool) -> int:
    """Write the built-in pairs as files and train on them as on anybody's files; a stopped demo goes on."""
    from qkv.cli.train import run_training
    from qkv.data.builtin import builtin_pairs
    from qkv.data.builtin_links import pharaoh
    from qkv.text.lines import write_text
    from qkv.train.state import saved_steps

    if again:
        _remove(out)
    files = {"train": out / TRAIN, "valid": out / VALID}
    for file, pairs in zip(files.values(), builtin_pairs(), strict=True):
        write_text(file, "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs))
    write_text(out / ALIGNMENT, "".join(f"{pharaoh(pair.links)}\n" for pair in builtin_pairs()[0]))
    recipe = out / SETTINGS
    write_text(recipe, json.dumps(RECIPE, indent=2) + "\n")
    flags: dict[str, Any] = {"source": str(files["train"]), "valid_source": str(files["valid"]), "alignment": str(out / ALIGNMENT)}
    return run_training("translate", out, recipe, [], flags, resume=bool(saved_steps(out)))


def _remove(out: Path) -> None:
    """A demo that is to be trained anew goes away; nothing else does, and nothing that is still being trained."""
    import shutil

    from qkv.train.lock import locked

    if not out.is_dir() or not any(out.iterdir()):
        return
    if not all((out / name).is_file() for name in (TRAIN, VALID, SETTINGS)):
        raise QkvError(out, say("not a folder of this demo, so it is not emptied", "不是本演示的文件夹，不会清空"),
                       say("choose another --out", "请另选 --out"))
    with locked(out):
        shutil.rmtree(out)


def _show(out: Path) -> None:
    """The score on the held-out sentences, the notes' sentences, and where the model looked for one of them."""
    import qkv
    from qkv.cli.attention import draw_cross_attention
    from qkv.data.builtin import NOTES_SENTENCES, builtin_pairs
    from qkv.measure.alignment_error import alignment_error_rate
    from qkv.measure.scores import score

    translator = qkv.load(out)
    _, held_out = builtin_pairs()
    outputs = translator([pair.source for pair in held_out])
    scores = score(outputs, [pair.target for pair in held_out], "en")
    print(say(f"\nOn {len(held_out)} unseen sentences:", f"\n在 {len(held_out)} 句未见过的句子上："))
    print(say(f"exact match {scores.exact:.1%}", f"完全一致 {scores.exact:.1%}"))
    print(scores)
    error = alignment_error_rate(translator, held_out)
    print(say(f"alignment error rate (AER) {error:.3f}", f"词对齐错误率（AER）{error:.3f}"))
    print()
    for pair, output in zip(NOTES_SENTENCES, translator([pair.source for pair in NOTES_SENTENCES]), strict=True):
        print(f"{pair.source} -> {output}")
    picture = draw_cross_attention(translator, NOTES_SENTENCES[1].source, out / "attention.png")
    print(say(f"\nWhere it looked: {picture}\nHow it learned:  {out / 'curves.png'}", f"\n它看了哪里：{picture}\n学习曲线：{out / 'curves.png'}"))
    print(say("Next: ", "接下来：") + f"qkv translate {out} 机器学习很有趣   |   "
          "qkv train translate --source a.zh --target a.en --out runs/mine")
