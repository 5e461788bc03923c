"""The command line: `qkv COMMAND`.

In: the arguments a person typed. Out: results on stdout, progress on stderr, exit code 0, 1 (a check failed) or
2 (a mistake the person can mend, in one line). Told in docs/design-notes.md, "Commands".
"""

import sys

from qkv.errors import QkvError
from qkv.messages import LANGUAGES, set_language
from qkv.threads import choose_threads


def main() -> None:
    """Run one command; every mistake of the person ends as one line and exit code 2."""
    try:
        arguments = _take_common_options(sys.argv[1:])
        from qkv.cli.app import (
            run,
        )  # after the language is known: the help texts are made at import

        code = run(arguments)
    except QkvError as error:
        print(error, file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader (head, less) has left
        sys.stderr.close()
        code = 141
    sys.exit(code)


def _take_common_options(arguments: list[str]) -> list[str]:
    """`--lang zh` and `--threads 2` may be given anywhere; they are taken out here, so that no command needs to know them."""
    rest: list[str] = []
    common = {"--lang": _use_language, "--threads": choose_threads}
    given = iter(arguments)
    for argument in given:
        name, sign, value = argument.partition("=")
        if argument == "--":  # what follows is text
            rest += [argument, *given]
        elif name not in common:
            rest.append(argument)
        else:
            common[name](value if sign else next(given, ""))
    return rest


def _use_language(language: str) -> None:
    if language not in LANGUAGES:
        wrong = f"no language '{language}'" if language else "no language given"
        raise QkvError("--lang", wrong, f"choose from {', '.join(LANGUAGES)}")
    set_language(language)
