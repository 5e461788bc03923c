"""Web application of the explore page: static files and the answers of an Explorer over HTTP.

`qkv.web.guard` checks each request first; an error is a 4xx with a message in both languages.
FastAPI comes with the extra `serve`. See docs/guides/inspect.md.
"""

import json

from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from torch import Tensor

from qkv.errors import QkvError
from qkv.explore.bundle import PAGE
from qkv.explore.explorer import Answer, Explorer
from qkv.explore.serialize import JsonObject, to_json, to_numpy
from qkv.text.lines import replace_surrogates
from qkv.web.api_errors import ApiError, not_found
from qkv.web.guard import Guard
from qkv.web.limits import Limits
from qkv.web.responses import error_response

MEDIA_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}


def make_app(explorer: Explorer, key: str | None = None, limits: Limits | None = None) -> Guard:
    """The ASGI application of a model's page; with `key`, requests must carry it."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    for kind in (ApiError, QkvError, Exception, 404, 405):
        app.exception_handler(kind)(respond_to_error)

    app.get("/")(lambda: static_file("index.html"))
    app.get("/page/{name}")(static_file)

    @app.get("/api/{name:path}")
    def get(name: str, request: Request) -> Response:
        return to_response(explorer.answer(name, dict(request.query_params)))

    @app.post("/api/{name:path}")
    async def post(name: str, request: Request) -> Response:
        body = read_json(await request.body())
        return to_response(await run_in_threadpool(answer_post, explorer, name, body))

    return Guard(app, key, limits)


def answer_post(explorer: Explorer, name: str, body: JsonObject) -> Answer:
    """The requests that carry a text."""
    match name:
        case "pass":
            target = None if body.get("target") is None else text_in(body, "target")
            return explorer.open(text_in(body, "text"), texts_in(body, "edits"), target)
        case "sentences":
            return explorer.compare_with(texts_in(body, "sentences"))
        case "tokens":
            return explorer.tokens_of(text_in(body, "text"), text_in(body, "side"))
    raise not_found(name)


# ---- requests


def read_json(body: bytes) -> JsonObject:
    """The JSON object of a request body."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise ApiError(400, "The body is not JSON.") from None
    if not isinstance(value, dict):
        raise ApiError(422, 'Send an object, such as {{"text": "..."}}.')
    return value


def text_in(body: JsonObject, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise ApiError(422, "'{name}' must be a string.", name=name)
    return replace_surrogates(value)


def texts_in(body: JsonObject, name: str) -> list[str]:
    value = body.get(name, [])
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ApiError(422, "'{name}' must be a list of strings.", name=name)
    return [replace_surrogates(text) for text in value]


# ---- responses


def static_file(name: str) -> Response:
    """A file of the page by its name; paths outside the folder do not exist."""
    path = PAGE / name
    if path.suffix not in MEDIA_TYPES or path not in PAGE.iterdir():
        raise not_found(name)
    return Response(path.read_bytes(), media_type=MEDIA_TYPES[path.suffix])


def to_response(answer: Answer) -> Response:
    """JSON, or binary values with shape and dtype in the headers."""
    if isinstance(answer, Tensor):
        values = to_numpy(answer)
        shape = ",".join(map(str, values.shape))
        headers = {"x-shape": shape, "x-dtype": str(values.dtype)}
        return Response(values.tobytes(), 200, headers, "application/octet-stream")
    return Response(to_json(answer), media_type="application/json")


def respond_to_error(request: Request, error: Exception) -> Response:
    match error:
        case QkvError():  # from a lower layer, in the language of the terminal
            error = ApiError(422, "{error}", error=error)
        case HTTPException(status_code=404):
            error = not_found(request.scope["path"])
        case HTTPException():
            error = ApiError(405, "This method is not allowed here.")
    if not isinstance(error, ApiError):
        error = ApiError(500, "Internal error in qkv; the terminal has the traceback.")
    return error_response(error)
