"""`qkv explore`: the page that shows a model think.

In: a model folder. Out: a page on this machine, or one file that holds it all. Told in docs/explore.md, "The page".
"""

import socket
import sys
import webbrowser
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.errors import QkvError
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.checkpoint.loaded_model import LoadedModel
    from qkv.explore.explorer import Explorer

PORT = 8321
LOOPBACK = ("127.0.0.1", "localhost", "::1")

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help=_("the model"))]
Text = Annotated[str | None, typer.Option(help=_("with --out: the text to record"))]
Compare = Annotated[
    list[str] | None, typer.Option(help=_("another text beside it; may be given again"))
]
Out = Annotated[Path | None, typer.Option(help=_("write one self-contained page instead"))]
Sentences = Annotated[Path | None, typer.Option(help=_("lines to find the nearest in (encoders)"))]
Port = Annotated[
    int | None, typer.Option(help=_("the port; {port}, or a free one", port=PORT), min=0, max=65535)
]
Host = Annotated[str, typer.Option(help=_("who may reach it; others than this machine need --key"))]
Key = Annotated[str | None, typer.Option(help=_("what others must know"))]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help=_("only print the address"))]
Device = Annotated[str, typer.Option(help="cpu, cuda, mps")]


def explore(
    folder: Folder,
    text: Text = None,
    compare: Compare = None,
    out: Out = None,
    sentences: Sentences = None,
    port: Port = None,
    host: Host = "127.0.0.1",
    key: Key = None,
    no_browser: NoBrowser = False,
    device: Device = "cpu",
) -> None:
    """Show the model think, on a page."""
    if (out is None) != (text is None):
        raise QkvError(
            "qkv explore",
            _("--text and --out belong together"),
            _("give both, or neither for the live page"),
        )
    if out is not None:
        from qkv.explore.offline import write_page

        print(
            write_page(open_explorer(folder, device, sentences), [str(text), *(compare or [])], out)
        )
        return
    check_door(host, key)
    serve(open_explorer(folder, device, sentences), host, port, key, no_browser)


def open_explorer(folder: Path, device: str = "cpu", sentences: Path | None = None) -> "Explorer":
    """The explorer of a model folder, ours or Hugging Face's."""
    from qkv.checkpoint.load import load_folder
    from qkv.explore.explorer import Explorer
    from qkv.explore.subject import Subject
    from qkv.text.lines import read_lines

    lines = [line for line in read_lines(sentences) if line.strip()] if sentences else []
    loaded = load_folder(folder, device)
    return Explorer(Subject(loaded, Path(folder).resolve().name, begin_of(loaded)), lines)


def begin_of(loaded: "LoadedModel") -> tuple[int, ...] | None:
    """What a generator reads before every text, as in `qkv generate`."""
    from qkv.text.special_tokens import generation_tokens

    tokenizer = loaded.tokenizers.get("tokenizer")
    if loaded.model.spec.encoder is not None or tokenizer is None:
        return None
    return generation_tokens(tokenizer, loaded.generation).begin


def check_door(host: str, key: str | None) -> None:
    """The page is open to this machine; to others only with a key, and only if its parts are installed."""
    if host not in LOOPBACK and not key:
        raise QkvError(
            f"--host {host}",
            _("others could read along"),
            _("give a --key that they must know, or leave it at 127.0.0.1"),
        )
    if key is not None and not (key.isascii() and key.isalnum() and len(key) >= 8):
        raise QkvError("--key", _("is no key"), _("use 8 or more letters and digits"))
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise QkvError("qkv explore", _("needs FastAPI and uvicorn"), "pip install 'qkv[serve]'")


def serve(
    explorer: "Explorer", host: str, port: int | None, key: str | None, no_browser: bool
) -> None:
    """Answer until the person stops it."""
    import uvicorn

    from qkv.explore.app import make_app

    door = open_door(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{door.getsockname()[1]}/" + (f"?key={key}" if key else "")
    print(address, flush=True)
    print(_("Ctrl+C ends it."), file=sys.stderr)
    if not no_browser:
        show(address)
    config = uvicorn.Config(
        make_app(explorer, key), log_level="warning", access_log=False, server_header=False
    )
    uvicorn.Server(config).run(sockets=[door])


def open_door(host: str, port: int | None) -> socket.socket:
    """A socket that listens: on the port asked for; else on ours, or a free one if that is taken."""
    for number in [PORT, 0] if port is None else [port]:
        try:
            return socket.create_server(
                (host, number), family=socket.AF_INET6 if ":" in host else socket.AF_INET
            )
        except OSError as error:
            reason = error.strerror
    raise QkvError(
        f"{host}:{port}",
        _("cannot be opened ({reason})", reason=reason),
        _("choose another --port or --host"),
    )


def show(address: str) -> None:
    """Open the browser, if there is one."""
    try:
        webbrowser.get().open(address)
    except webbrowser.Error:
        return
