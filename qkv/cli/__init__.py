"""The command line: `qkv COMMAND`.

In: the arguments a person typed. Out: results on stdout, progress on stderr, exit code 0, 1 (a check failed) or
2 (a mistake the person can mend, in one line). Told in docs/design-notes.md, "Commands".
"""

import sys

from qkv.errors import QkvError
from qkv.language import LANGUAGES, set_language


def main() -> None:
    """Run one command; every mistake of the person ends as one line and exit code 2."""
    try:
        arguments = _take_language(sys.argv[1:])
        from qkv.cli.app import run  # after the language is known: the help texts are made at import

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


def _take_language(arguments: list[str]) -> list[str]:
    """`--lang zh` may stand anywhere; it is taken out here, so that no command needs to know it."""
    rest, waiting = [], False
    for argument in arguments:
        if waiting or argument.startswith("--lang="):
            language = argument.removeprefix("--lang=")
            if language not in LANGUAGES:
                raise QkvError("--lang", f"no language '{language}'", f"choose from {', '.join(LANGUAGES)}")
            set_language(language)
            waiting = False
        elif argument == "--lang":
            waiting = True
        else:
            rest.append(argument)
    if waiting:
        raise QkvError("--lang", "no language given", f"choose from {', '.join(LANGUAGES)}")
    return rest
