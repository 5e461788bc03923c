"""Run a study and write its report: `qkv.study.run`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.arguments import with_settings
from qkv.errors import QkvError, near_miss
from qkv.messages import _
from qkv.study.config import StudyConfig
from qkv.study.question import STUDIES
from qkv.study.report import write_report
from qkv.study.results import Results
from qkv.study.runner import measure_study

__all__ = ["Study", "names", "run"]


@dataclass(frozen=True)
class Study:
    """A finished study.

    Example:
        study = qkv.study.run("scale", quick=True)
        print(study.conclusion)

    Attributes:
        name: The name of the study.
        folder: The folder with its files.
        results: The measurements of every experiment, condition and seed.
        record: The content of study.json.
    """

    name: str
    folder: Path
    results: Results
    record: dict[str, Any]

    @property
    def conclusion(self) -> str:
        """The answer to the question; it says which differences are within noise."""
        return self.record["conclusion"]


def names() -> list[str]:
    """List the studies.

    Returns:
        The names that `run` takes.
    """
    return list(STUDIES)


def run(
    name: str, out: str | Path | None = None, config: StudyConfig | None = None, **settings: Any
) -> Study:
    """Run a study, or continue it if its folder has some of the measurements.

    Example: qkv.study.run("heads", seeds=3, minutes=10).conclusion

    Args:
        name: The name of the study.
        out: The folder of its files; None: runs/study-NAME.
        config: The settings; None: the defaults.
        settings: Fields of StudyConfig to change.

    Returns:
        The study with its results.

    Raises:
        QkvError: There is no such study, or a setting, a file or the folder is wrong.
        StudyStopped: SIGINT or SIGTERM was received.
    """
    if name not in STUDIES:
        raise QkvError(str(name), _("no such study"), near_miss(str(name), STUDIES))
    config = with_settings(StudyConfig, config, settings)
    folder = Path(out) if out is not None else default_folder(name, config)
    results, steps = measure_study(name, folder, config)
    return Study(name, folder, results, write_report(name, results, folder, config, steps))


def default_folder(name: str, config: StudyConfig) -> Path:
    """runs/study-NAME; a quick run has its own, because it does not answer the question."""
    return Path("runs") / (f"study-{name}-quick" if config.quick else f"study-{name}")
