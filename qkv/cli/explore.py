"""`qkv explore`: serve the explorer page of a model, or write it as one HTML file.

See docs/guides/inspect.md.
"""

import socket
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.cli.options import Device, Folder
from qkv.cli.parameters import option
from qkv.errors import QkvError
from qkv.files import check_output
from qkv.limits import NumberRange
from qkv.messages import _
from qkv.text.lines import read_lines
from qkv.web.hosts import LOOPBACK

if TYPE_CHECKING:
    from qkv.checkpoint.loaded_model import LoadedModel
    from qkv.explore.explorer import Explorer

__all__ = ["open_explorer"]

DEFAULT_PORT = 8321


def explore(
    folder: Folder,
    text: str | None = option(None, "input text of the page, with --out"),
    compare: list[str] | None = option(None, "another text to compare with; may be repeated"),
    out: Path | None = option(None, "write a self-contained HTML file instead of serving the page"),
    sentences: Path | None = option(
        None, "sentences for nearest-neighbor search (encoder-only models)"
    ),
    port: int | None = option(
        None, "port; default 8321, or a free one", limit=NumberRange(0, 65_535)
    ),
    host: str = option("127.0.0.1", "address to listen on; --key is required unless it is local"),
    key: str | None = option(None, "access key of the page"),
    no_browser: bool = option(False, "do not open a browser", "--no-browser"),
    device: Device = "cpu",
) -> None:
    """Open a web page that shows every step of the model on your text."""
    if (out is None) != (text is None):
        raise QkvError(
            "qkv explore",
            _("--text and --out must be given together"),
            _("give both, or neither to serve the page"),
        )
    if out is not None:
        check_output(out, [folder, sentences])
        from qkv.explore.offline import write_page

        texts = [str(text), *(compare or [])]
        print(write_page(open_explorer(folder, device, sentences), texts, out))
        return
    check_access(host, key)
    serve(open_explorer(folder, device, sentences), host, port, key, no_browser)


def open_explorer(folder: Path, device: str = "cpu", sentences: Path | None = None) -> "Explorer":
    """The explorer of a model folder (qkv or Hugging Face format)."""
    from qkv.checkpoint.load import load_folder
    from qkv.explore.explored_model import ExploredModel
    from qkv.explore.explorer import Explorer

    lines = [line for line in read_lines(sentences) if line.strip()] if sentences else []
    loaded = load_folder(folder, device)
    return Explorer(ExploredModel(loaded, Path(folder).resolve().name, begin_of(loaded)), lines)


@contextmanager
def page_errors(where: str) -> Iterator[None]:
    """Report an error of the explorer, which has both languages, as one of this command."""
    from qkv.web.api_errors import ApiError

    try:
        yield
    except ApiError as error:
        raise QkvError(where, error.text()) from None


def begin_of(loaded: "LoadedModel") -> tuple[int, ...] | None:
    """The special tokens before every text of a language model, as in `qkv generate`."""
    from qkv.text.special_tokens import generation_tokens

    tokenizer = loaded.tokenizers.get("tokenizer")
    if loaded.model.spec.encoder is not None or tokenizer is None:
        return None
    return generation_tokens(tokenizer, loaded.generation).begin


def check_access(host: str, key: str | None) -> None:
    """Raise if other machines could reach the page without a key, or if FastAPI is missing."""
    if host not in LOOPBACK and not key:
        raise QkvError(
            f"--host {host}",
            _("the page would be open to other machines"),
            _("give a --key, or use 127.0.0.1"),
        )
    if key is not None and not (key.isascii() and key.isalnum() and len(key) >= 8):
        raise QkvError("--key", _("invalid key"), _("use at least 8 letters and digits"))
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise QkvError("qkv explore", _("requires FastAPI and uvicorn"), "pip install 'qkv[serve]'")


def serve(
    explorer: "Explorer", host: str, port: int | None, key: str | None, no_browser: bool
) -> None:
    """Serve the page until Ctrl+C."""
    from qkv.explore.app import make_app
    from qkv.web.server import make_server

    listener = open_socket(host, port)
    url_host = f"[{host}]" if ":" in host else host
    address = f"http://{url_host}:{listener.getsockname()[1]}/" + (f"?key={key}" if key else "")
    print(address, flush=True)
    print(_("Press Ctrl+C to stop."), file=sys.stderr)
    if not no_browser:
        with suppress(webbrowser.Error):  # there is no browser
            webbrowser.get().open(address)
    make_server(make_app(explorer, key)).run(sockets=[listener])


def open_socket(host: str, port: int | None) -> socket.socket:
    """A listening socket on `port`; by default on 8321, or on a free port if that is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in [DEFAULT_PORT, 0] if port is None else [port]:
        try:
            return socket.create_server((host, number), family=family)
        except OSError as error:
            reason = error.strerror
    raise QkvError(
        f"{host}:{port}",
        _("cannot listen ({reason})", reason=reason),
        _("choose another --port or --host"),
    )
