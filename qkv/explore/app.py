"""The server of the page: static files and the answers of an Explorer, over HTTP.

In: an Explorer. Out: an application for uvicorn. Everything is checked at the door (guard.py); a mistake is one sentence
in both languages with a 4xx. FastAPI comes with the extra `serve`. Told in docs/explore.md, "The page".
"""

import json
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool
from torch import Tensor

from qkv.errors import QkvError
from qkv.explore.explorer import Answer, Explorer
from qkv.explore.guard import Guard
from qkv.explore.numerals import as_numbers, to_json
from qkv.explore.problem import Problem
from qkv.explore.questions import no_such
from qkv.text.lines import mend_surrogates

PAGE = Path(__file__).parent / "page"
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}


def make_app(explorer: Explorer, key: str | None = None) -> Guard:
    """The page of this model; with a `key`, only for those who know it."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.exception_handler(Problem)(told)
    app.exception_handler(QkvError)(told_by_us)
    app.exception_handler(Exception)(told_of_us)
    app.exception_handler(404)(lambda request, error: told(request, no_such(request.url.path)))
    app.exception_handler(405)(
        lambda request, error: told(request, Problem(405, "This cannot be asked so."))
    )

    @app.get("/")
    def page() -> Response:
        return static("index.html")

    @app.get("/page/{name}")
    def file(name: str) -> Response:
        return static(name)

    @app.get("/api/{name:path}")
    def answer(name: str, request: Request) -> Response:
        return packed(explorer.answer(name, dict(request.query_params)))

    @app.post("/api/{name:path}")
    async def ask(name: str, request: Request) -> Response:
        body = read_json(await request.body())
        return packed(await run_in_threadpool(asked, explorer, name, body))

    return Guard(app, key)


def asked(explorer: Explorer, name: str, body: dict[str, Any]) -> Answer:
    """The three questions that bring a text with them."""
    match name:
        case "pass":
            target = None if body.get("target") is None else text_in(body, "target")
            return explorer.open(text_in(body, "text"), texts_in(body, "edits"), target)
        case "sentences":
            return explorer.compare_with(texts_in(body, "sentences"))
        case "tokens":
            return explorer.tokens_of(text_in(body, "text"), text_in(body, "side"))
    raise no_such(name)


# ---- reading --------------------------------------------------------------------------------------------------------


def read_json(body: bytes) -> dict[str, Any]:
    """The object that was sent."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise Problem(400, "This is not JSON.") from None
    if not isinstance(value, dict):
        raise Problem(422, 'Send an object, such as {{"text": "..."}}.')
    return value


def text_in(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise Problem(422, "'{name}' must be a text.", name=name)
    return mend_surrogates(value)


def texts_in(body: dict[str, Any], name: str) -> list[str]:
    value = body.get(name, [])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise Problem(422, "'{name}' must be a list of texts.", name=name)
    return [mend_surrogates(one) for one in value]


# ---- answering ------------------------------------------------------------------------------------------------------


def static(name: str) -> Response:
    """A file of the page, by its plain name; there is no way out of the folder."""
    files = {path.name: path for path in PAGE.iterdir() if path.suffix in TYPES}
    if name not in files:
        raise no_such(name)
    return Response(files[name].read_bytes(), media_type=TYPES[files[name].suffix])


def packed(answer: Answer) -> Response:
    """JSON, or numbers in binary with their shape beside them."""
    if isinstance(answer, Tensor):
        numbers = as_numbers(answer)
        shape = ",".join(map(str, numbers.shape))
        return Response(
            numbers.tobytes(),
            media_type="application/octet-stream",
            headers={"x-shape": shape, "x-dtype": str(numbers.dtype)},
        )
    return Response(to_json(answer), media_type="application/json")


def told(request: Request, problem: Any) -> Response:
    return Response(to_json(problem.as_json()), problem.status, media_type="application/json")


def told_by_us(request: Request, error: Any) -> Response:
    """A mistake that a part below has found speaks one language."""
    return told(request, Problem(422, "{error}", error=error))


def told_of_us(request: Request, error: Any) -> Response:
    """A mistake of ours: the terminal shows where, the page stays polite."""
    return told(
        request, Problem(500, "Something went wrong in qkv itself; the terminal tells more.")
    )
