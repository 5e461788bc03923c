"""`qkv tokenizer`: learn, encode, decode, show, report."""

import typer

from qkv.language import say

app = typer.Typer(no_args_is_help=True, help=say("Text to tokens and back.", "文本与词元互换。"))


@app.callback()
def group() -> None: ...
