"""Studies: questions about Transformers, answered by experiments on this machine.

Example:
    qkv.study.run("heads", seeds=3, minutes=10).conclusion

Names are imported on first use. See docs/explanation/studies/index.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv.study.config import StudyConfig
    from qkv.study.runner import StudyStopped
    from qkv.study.study import Study, names, run

__all__ = ["Study", "StudyConfig", "StudyStopped", "names", "run"]
MODULES = {"StudyConfig": "qkv.study.config", "StudyStopped": "qkv.study.runner"}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(MODULES.get(name, "qkv.study.study")), name)
    raise AttributeError(f"module 'qkv.study' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
