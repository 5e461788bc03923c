"""The folder of a study: its plan, one file per measurement, and the report.

    plan.json  study.json  study.png  study.zh.png  README.md  README.zh.md  log.txt
    data/      results/EXPERIMENT-CONDITION-SEED.json

See docs/explanation/studies/index.md, "Files".
"""

import json
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.files import atomic_path, check_output_folder
from qkv.json_files import read_json
from qkv.messages import _

PLAN = "plan.json"
UNPLANNED = {".lock", "data", "log.txt"}  # files that a run may leave before it has a plan
FREE = ("seeds", "workers")  # settings that may change between two runs in one folder


class Store:
    """Reads and writes the files of a study.

    Args:
        folder: The folder; it may be missing, and must be empty or a study's.
    """

    def __init__(self, folder: Path):
        self.folder, self.data = folder, folder / "data"
        has_plan = (folder / PLAN).is_file()
        check_output_folder(folder, is_own=has_plan or self._names() <= UNPLANNED)

    def _names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()} if self.folder.is_dir() else set()

    # ── Plan ──────────────────────────────────────────────────────────────────────────────
    def plan(self, study: str, settings: dict[str, Any]) -> dict[str, Any]:
        """The plan of an earlier run with the same settings, or a new one."""
        new: dict[str, Any] = {"study": study, "settings": settings, "seconds_per_step": {}}
        path = self.folder / PLAN
        if not path.is_file():
            return new
        plan: dict[str, Any] = read_json(path)
        made_with = {"study": plan["study"], **plan["settings"]}
        for name, value in {"study": study, **settings}.items():
            if name not in FREE and made_with[name] != value:
                wrong = _("was made with {name} {value}", name=name, value=made_with[name])
                raise QkvError(self.folder, wrong, _("repeat it, or choose another --out"))
        return plan | {"settings": settings}

    def save_plan(self, plan: dict[str, Any]) -> None:
        write_json(self.folder / PLAN, plan)

    # ── Measurements ──────────────────────────────────────────────────────────────────────
    def path(self, job: dict[str, Any]) -> Path:
        name = f"{job['experiment']}-{job['condition']}-{job['seed']}.json"
        return self.folder / "results" / name

    def load(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """The result of a measurement; None: not measured yet."""
        path = self.path(job)
        return read_json(path) if path.is_file() else None

    def save(self, job: dict[str, Any], message: dict[str, Any]) -> None:
        kept = {name: job[name] for name in ("experiment", "condition", "seed", "steps")}
        write_json(self.path(job), kept | message)


def write_json(path: Path, value: object) -> None:
    with atomic_path(path) as unfinished:
        text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
        unfinished.write_text(text + "\n", encoding="utf-8")
