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
from qkv.language import say

if TYPE_CHECKING:
    from qkv.checkpoint.loaded_model import LoadedModel
    from qkv.explore.explorer import Explorer

PORT = 8321
LOOPBACK = ("127.0.0.1", "localhost", "::1")

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help=say("the model", "模型文件夹"))]
Text = Annotated[str | None, typer.Option(help=say("with --out: the text to record", "与 --out 同用：要记录的文本"))]
Compare = Annotated[list[str] | None, typer.Option(help=say("another text beside it; may be given again", "并列的另一段文本；可多次给出"))]
Out = Annotated[Path | None, typer.Option(help=say("write one self-contained page instead", "改为写出一个自足的网页文件"))]
Sentences = Annotated[Path | None, typer.Option(help=say("lines to find the nearest in (encoders)", "在其中找最近句的文件（编码器）"))]
Port = Annotated[int | None, typer.Option(help=say(f"the port; {PORT}, or a free one", f"端口；默认 {PORT} 或空闲端口"), min=0, max=65535)]
Host = Annotated[str, typer.Option(help=say("who may reach it; others than this machine need --key", "监听地址；非本机须给 --key"))]
Key = Annotated[str | None, typer.Option(help=say("what others must know", "他人须知的密钥"))]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help=say("only print the address", "只打印地址"))]
Device = Annotated[str, typer.Option(help="cpu, cuda, mps")]


def explore(
    folder: Folder, text: Text = None, compare: Compare = None, out: Out = None, sentences: Sentences = None,
    port: Port = None, host: Host = "127.0.0.1", key: Key = None, no_browser: NoBrowser = False, device: Device = "cpu",
) -> None:
    """Show the model think, on a page."""
    if (out is None) != (text is None):
        raise QkvError("qkv explore", say("--text and --out belong together", "--text 与 --out 要一起用"),
                       say("give both, or neither for the live page", "请都给出；实时网页则都不给"))
    if out is not None:
        from qkv.explore.offline import write_page

        print(write_page(open_explorer(folder, device, sentences), [str(text), *(compare or [])], out))
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
        raise QkvError(f"--host {host}", say("others could read along", "他人也能看到"),
                       say("give a --key that they must know, or leave it at 127.0.0.1", "请给出 --key，或保留 127.0.0.1"))
    if key is not None and not (key.isascii() and key.isalnum() and len(key) >= 8):
        raise QkvError("--key", say("is no key", "不能作为密钥"), say("use 8 or more letters and digits", "请用 8 个以上的字母和数字"))
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise QkvError("qkv explore", say("needs FastAPI and uvicorn", "需要 FastAPI 和 uvicorn"), "pip install 'qkv[serve]'")


def serve(explorer: "Explorer", host: str, port: int | None, key: str | None, no_browser: bool) -> None:
    """Answer until the person stops it."""
    import uvicorn

    from qkv.explore.app import make_app

    door = open_door(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{door.getsockname()[1]}/" + (f"?key={key}" if key else "")
    print(address, flush=True)
    print(say("Ctrl+C ends it.", "按 Ctrl+C 结束。"), file=sys.stderr)
    if not no_browser:
        show(address)
    config = uvicorn.Config(make_app(explorer, key), log_level="warning", access_log=False, server_header=False)
    uvicorn.Server(config).run(sockets=[door])


def open_door(host: str, port: int | None) -> socket.socket:
    """A socket that listens: on the port asked for; else on ours, or a free one if that is taken."""
    for number in [PORT, 0] if port is None else [port]:
        try:
            return socket.create_server((host, number), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            reason = error.strerror
    raise QkvError(f"{host}:{port}", say(f"cannot be opened ({reason})", f"无法打开（{reason}）"),
                   say("choose another --port or --host", "请换 --port 或 --host"))


def show(address: str) -> None:
    """Open the browser, if there is one."""
    try:
        webbrowser.get().open(address)
    except webbrowser.Error:
        return
