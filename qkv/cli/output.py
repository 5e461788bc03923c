"""JSON on stdout, for `--json`."""

import json


def print_json(value: object, indent: int | None = None) -> None:
    """Print a value as JSON: on one line, or indented."""
    print(json.dumps(value, ensure_ascii=False, indent=indent))
