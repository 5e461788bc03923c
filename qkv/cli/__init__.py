"""The command line: `qkv COMMAND`.

Results go to stdout, progress to stderr. Exit codes: docs/reference/files.md.
"""

import sys
from pathlib import Path

from qkv.cli.streams import check_utf8, file_error, open_streams
from qkv.errors import QkvError
from qkv.messages import LANGUAGES, set_language
from qkv.threads import choose_threads

__all__ = ["main"]


def main() -> None:
    """Run one command; an error that the user can fix is printed in one line, with exit code 2."""
    try:
        try:
            open_streams()
            code = _run(sys.argv[1:])
        finally:
            sys.stdout.flush()
    except QkvError as error:
        print(error, file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # head or less has exited
        code = 141
    except OSError as error:
        print(file_error(error), file=sys.stderr)
        code = 2
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    check_utf8(arguments)
    rest = _take_common_options(arguments)
    from qkv.cli.app import run  # help texts are translated at import

    return run(rest)


def _take_common_options(arguments: list[str]) -> list[str]:
    """Apply `--lang`, `--threads` and `--custom`, which may be anywhere; return the rest."""
    rest: list[str] = []
    common = {"--lang": _use_language, "--threads": choose_threads, "--custom": _allow_custom}
    remaining = iter(arguments)
    for argument in remaining:
        name, sign, value = argument.partition("=")
        if argument == "--":  # all that follows is text
            rest += [argument, *remaining]
        elif name not in common:
            rest.append(argument)
        else:
            common[name](value if sign else next(remaining, ""))
    return rest


def _use_language(language: str) -> None:
    if language not in LANGUAGES:
        wrong = f"no language '{language}'" if language else "no language given"
        raise QkvError("--lang", wrong, f"choose from {', '.join(LANGUAGES)}")
    set_language(language)


def _allow_custom(path: str) -> None:
    """Allow a custom part for this command; its module may be in the current folder."""
    from qkv.model.custom import add_allowed

    add_allowed([path])
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
