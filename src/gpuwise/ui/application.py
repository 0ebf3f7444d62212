# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingTypeArgument=false
# the extra `ui` may be absent where this is checked
"""The pages and what they ask, as one ASGI application: look up, pass on, answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gpuwise.cli.asked import faults_of
from gpuwise.cli.sentence import offers
from gpuwise.errors import GpuwiseError, InputError
from gpuwise.report.answers.look import style
from gpuwise.ui.gathered import Query, QueryBatcher
from gpuwise.ui.live import Live
from gpuwise.ui.names import names
from gpuwise.ui.own_files import own_files, own_runs, words_of_fields, words_of_file
from gpuwise.ui.questions import LONGEST, PAGES, address_of, line_of, site, with_json, words_of
from gpuwise.ui.refusals import Fault, page_faults
from gpuwise.ui.views import KINDS as KINDS_KEPT
from gpuwise.ui.views import body_of, export
from gpuwise.ui.workers import FIRST, Answer, Workers

KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
T = TypeVar("T")
HINT = "see the command's --help"
LEFT = 499
"""HTTP status of an answer whose client has left."""
CAPTURED = 8
"""Stored answers about own code, for their files."""


@cache
def assets() -> Mapping[str, tuple[str, bytes]]:
    """Every file a browser may have, by its name in the address: content type and bytes."""
    found: dict[str, tuple[str, bytes]] = {}
    root = files("gpuwise.ui") / "assets"
    for folder in (root, root / "vendor", root / "lessons"):
        for file in folder.iterdir():
            kind = KINDS.get("." + file.name.rpartition(".")[2])
            if file.is_file() and kind is not None:
                found[file.name] = (kind + "; charset=utf-8", file.read_bytes())
    own = found["style.css"]
    return found | {"style.css": (own[0], style().encode() + own[1])}


def application(workers: Workers, folder: Path) -> Starlette:
    """The application, with ``workers`` started and stopped with it; the user's own code is in ``folder``."""
    live = Live()
    layouts = QueryBatcher(workers, subject)
    captured: OrderedDict[tuple[str, ...], Answer] = OrderedDict()
    told: dict[tuple[str, ...], str] = {}

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        await workers.start()
        warming = asyncio.gather(layouts.ask(FIRST), return_exceptions=True)
        try:
            yield
        finally:
            warming.cancel()
            layouts.stop()
            await live.stop()
            await workers.stop()

    def argv_of(request: Request) -> list[str]:
        name = request.path_params["name"]
        return words_of(name, query_of(request), own_runs(folder) if name == "ranks" else None)

    async def pages(_: Request) -> Response:
        return JSONResponse(site([*own_runs(folder)]), headers={"cache-control": "no-store"})

    async def suggested(_: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(names), headers={"cache-control": "no-store"})

    async def heard(request: Request) -> Response:
        text = request.query_params.get("q", "").strip()
        if not text or len(text) > LONGEST:
            what = f"a question of {len(text):,} characters" if text else "no question"
            raise InputError(what, hint=f"words, at most {LONGEST} characters")
        found = await asyncio.to_thread(offers, text)
        offered = [{"question": o.question, "line": o.line, "path": address_of(o.words)} for o in found]
        return JSONResponse({"offers": offered}, headers={"cache-control": "no-store"})

    async def ask(request: Request) -> Response:
        name, query, faults = request.path_params["name"], query_of(request), list[InputError]()
        words = words_of(name, query, own_runs(folder) if name == "ranks" else None, faults)
        if faults:
            others = await asyncio.to_thread(faults_of, words)
            return faulty(name, [{"error": f.message, "hint": f.hint or HINT} for f in (*faults, *others)], query)
        answer = await unless_gone(request, workers.ask(with_json(words)))
        if answer is None:
            return Response(status_code=LEFT)
        if answer.document and "error" in answer.document:
            return faulty(name, answer.document.get("faults") or [answer.document], query)
        return answered(name, answer, words)

    async def at_once(request: Request) -> Response:
        query = tuple(sorted(query_of(request).items()))
        try:
            body = layouts.cached(query) or await unless_gone(request, layouts.ask(query))
        except GpuwiseError as error:
            return faulty("plan", [{"error": error.message, "hint": error.hint or ""}], dict(query))
        if body is None:
            return Response(status_code=LEFT)
        return Response(body, media_type="application/json", headers={"cache-control": "no-store"})

    async def keep(request: Request) -> Response:
        name, kind = request.path_params["name"], request.path_params["kind"]
        is_code = name == "own"
        words = words_of_fields(query_of(request), folder) if is_code else argv_of(request)
        if is_code and tuple(words) not in captured:
            raise InputError(
                "the page has not run this code", hint="press its button first: opening an address does not run code"
            )
        answer = captured[tuple(words)] if is_code else await unless_gone(request, workers.ask(with_json(words)))
        document = {} if answer is None else answer.document or {}
        if not document or "error" in document:
            return JSONResponse(document, status_code=422)
        text = export(name, kind, document, line_of(words))
        headers = {"content-disposition": f'attachment; filename="gpuwise-{name}.{kind}"', "cache-control": "no-store"}
        return Response(text, media_type=KINDS_KEPT[kind] + "; charset=utf-8", headers=headers)

    async def listen(request: Request) -> Response:
        stream = live.events("demo" in request.query_params)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def listing(_: Request) -> Response:
        return JSONResponse({"folder": str(folder), "files": own_files(folder)}, headers={"cache-control": "no-store"})

    async def capture(request: Request) -> Response:
        words = words_of_file(await request.body(), folder)
        try:
            answer = await unless_gone(request, workers.ask(with_json(words), folder, partial(told.__setitem__, tuple(words))))
        finally:
            told.pop(tuple(words), None)
        if answer is not None and answer.document and "error" not in answer.document:
            captured[tuple(words)] = answer
            if len(captured) > CAPTURED:
                captured.popitem(last=False)
        return Response(status_code=LEFT) if answer is None else answered("own", answer, words)

    async def run_before(request: Request) -> Response:
        words = words_of_fields(query_of(request), folder)
        answer = captured.get(tuple(words))
        doing = {"told": told[tuple(words)]} if tuple(words) in told else {}
        return JSONResponse({"run": False, **doing}) if answer is None else answered("own", answer, words)

    async def state(_: Request) -> Response:
        return JSONResponse({"running": workers.running})

    routes = [
        Route("/", page),
        *(Route(f"/{p.name}", page) for p in PAGES),
        Route("/assets/{name}", asset),
        Route("/api/ask/{name}", ask),
        Route("/api/moment", at_once),
        Route("/api/live", listen),
        Route("/api/files", listing),
        Route("/api/capture", capture, methods=["POST"]),
        Route("/api/own", run_before),
        Route("/api/pages", pages),
        Route("/api/names", suggested),
        Route("/api/heard", heard),
        Route("/api/state", state),
        Route("/export/{name}.{kind}", keep),
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={GpuwiseError: refused, 404: nothing, 405: nothing})


def subject(query: Query) -> Query:
    """Common part of layouts that are estimated in one pass: model, accelerators and sequence."""
    return tuple((name, value) for name, value in query if name in ("model", "on", "seq", "packed"))


async def page(_: Request) -> Response:
    """The one page, never stored by the browser."""
    kind, body = assets()["index.html"]
    return Response(body, media_type=kind, headers={"cache-control": "no-store"})


async def asset(request: Request) -> Response:
    """A script, style or licence by name; 404 for another name."""
    file = assets().get(request.path_params["name"])
    if file is None:
        return await nothing(request, None)
    return Response(file[1], media_type=file[0], headers={"cache-control": "no-cache"})


async def refused(_: Request, error: Any) -> Response:
    """A gpuwise error, in the words of the command line."""
    document = {"error": error.message, "hint": error.hint or HINT}
    return JSONResponse(document, status_code=422, headers={"cache-control": "no-store"})


def faulty(name: str, faults: Sequence[Fault], query: Mapping[str, str]) -> Response:
    """What is wrong with a question, each fault with its field; the first as an error alone too."""
    made = page_faults(name, faults, query)
    first = {key: made[0][key] for key in ("error", "hint")}
    return JSONResponse(first | {"faults": made}, status_code=422, headers={"cache-control": "no-store"})


async def nothing(request: Request, _: Any) -> Response:
    """404 with an error and a hint."""
    document = {"error": f"there is nothing at {request.url.path[:100]}", "hint": "start from the first page"}
    return JSONResponse(document, status_code=404)


def query_of(request: Request) -> dict[str, str]:
    """The query, each field once; the token that opened the page is not a field. Raises InputError."""
    query: dict[str, str] = {}
    for key, value in request.query_params.multi_items():
        if key in query:
            raise InputError(f"the field {key!r} is given twice", hint="leave one out")
        query[key] = value
    query.pop("token", None)
    return query


def answered(name: str, answer: Answer, words: list[str]) -> Response:
    """A command's document, with the command line that prints the same."""
    document = answer.document or {"error": "the command gave no document", "hint": "run it in a terminal"}
    body = body_of(name, answer.code, words, document)
    return JSONResponse(body, status_code=422 if "error" in document else 200, headers={"cache-control": "no-store"})


async def unless_gone(request: Request, work: Awaitable[T]) -> T | None:
    """Result of ``work``, or None if the browser leaves first: then it is cancelled."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
