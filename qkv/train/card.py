"""The end of a run, told to people: the final score, the curves, the model card.

In: a trained folder and something that translates with it. Out: README.md and curves.png in the folder, and the score.
Told in docs/training.md, "What a run leaves behind".
"""

from collections.abc import Callable
from pathlib import Path

from qkv.language import say
from qkv.measure.cost import parameters
from qkv.measure.scores import Scores, score
from qkv.text.lines import write_text
from qkv.train.report import METRICS, Facts, draw_curves, model_card, read_metrics
from qkv.train.translation import Translation

Translate = Callable[..., list[str]]  # texts, and how to search


def write_card(folder: Path, task: Translation, translate: Translate) -> Scores:
    """Translate the held-out sentences with the published model, and write down what it is and how good it is."""
    recipe, spec = task.recipe, task.spec
    sources, references = list(task.valid.source_texts), list(task.valid.target_texts)
    outputs = translate(sources, beam_size=recipe.beam_size, length_penalty=recipe.length_penalty)
    scores = score(outputs, references, recipe.target_language or "", recipe.bleu_tokenize or "")
    entries = read_metrics(folder / METRICS)
    facts = Facts(
        folder=str(folder),
        data={say("pairs", "句对"): len(task.train.source_texts), say("held out", "验证句对"): len(sources),
              say("vocabulary", "词表"): spec.vocab_size},
        model={say("parameters", "参数"): sum(parameters(spec).values()), "d_model": spec.d_model,
               say("layers", "层"): f"{_depth(spec.encoder)} + {_depth(spec.decoder)}"},
        training={say("steps", "步数"): entries[-1]["step"] if entries else recipe.steps, say("optimiser", "优化器"): recipe.optimizer,
                  say("seconds", "秒"): round(entries[-1]["seconds"]) if entries else 0},
        scores={say(f"held out, beam {recipe.beam_size}", f"验证集，束宽 {recipe.beam_size}"): str(scores)},
        example=(sources[0], translate(sources[:1])[0]),  # as the card's own lines translate it
    )  # fmt: skip
    write_text(folder / "README.md", model_card(facts))
    draw_curves(folder / METRICS)
    return scores


def _depth(stack: object) -> int:
    return len(stack.each_layer()) if stack is not None else 0  # type: ignore[attr-defined]
