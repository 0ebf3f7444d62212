# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false, reportUnknownParameterType=false
# the extra `mcp` may be absent where this is checked
"""The server of the Model Context Protocol: it lists the tools, runs a call in a process of its own, and passes progress on.

An answer is the first screen as text and its summary as data. The whole document stays readable for a while: as the resource
that the answer links to, or in parts with the tool ``read_answer``.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TYPE_CHECKING, Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from gpuwise import __version__
from gpuwise.errors import GpuwiseError, InputError, UnknownNameError
from gpuwise.interval import P80
from gpuwise.ui.mcp.tools import Allowed, Tool, parts_of, tools
from gpuwise.ui.questions import line_of, with_json
from gpuwise.ui.workers import Answer, Workers

if TYPE_CHECKING:
    import socket

    from gpuwise.ui.guard import App, Receive, Scope, Send

STORED = 20
"""Answers whose documents can be read later; the oldest goes first."""
LONGEST = 40_000
"""Characters of one reply: what a model reads at once."""
RESOURCE = "gpuwise://answers/"
READ = "read_answer"
READ_TOOL = types.Tool(
    name=READ,
    description="Part of the JSON document of an earlier answer: SI units, estimates as {low, expected, high, basis}.",
    input_schema={
        "type": "object",
        "properties": {
            "answer": {"type": "integer", "description": "Number of the answer, as it was given with it."},
            "pointer": {"type": "string", "description": "JSON pointer (/best/strategy); empty: the whole document."},
        },
        "required": ["answer"],
        "additionalProperties": False,
    },
    annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
)
INSTRUCTIONS = (
    "Whether an AI model fits accelerators, how fast it trains or serves, and what it costs. One call answers one question: "
    "fit (does it run, fine-tune, train on this device?), plan (train it: layout, days, dollars), capacity (serve a load), pick "
    f"(which GPU to get). Name models and GPUs as people do (llama-3.1-8b, 2x3090). Numbers are estimates with {P80} intervals: "
    "pass the interval on. An answer with state no is an answer, not an error."
)


class Questions:
    """The handlers of one server."""

    def __init__(self, allowed: Allowed) -> None:
        self.allowed, self.tools, self.workers = allowed, tools(allowed), Workers()
        self._documents: OrderedDict[int, dict[str, Any]] = OrderedDict()
        self._numbers = itertools.count(1)

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Any) -> AsyncGenerator[None]:
        """While the processes run that answer."""
        await self.workers.start()
        try:
            yield
        finally:
            await self.workers.stop()

    async def list_tools(self, _: Any, __: Any) -> types.ListToolsResult:
        """Every tool."""
        made = await asyncio.to_thread(lambda: [_tool(t) for t in self.tools.values()])
        return types.ListToolsResult(tools=[*made, READ_TOOL])

    async def call_tool(self, context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        """The answer of one call; what is refused is a result that says so, for the model to ask again."""
        given = params.arguments or {}
        try:
            if params.name == READ:
                return self._read(given)
            tool = self.tools.get(params.name)
            if tool is None:
                raise UnknownNameError("tool", params.name, [*self.tools, READ])
            words = await asyncio.to_thread(tool.words, given)
            show = parts_of(tool, given)
        except GpuwiseError as error:
            return _refused({"error": error.message, "hint": error.hint or "see the tool's arguments"})
        telling: list[asyncio.Task[None]] = []

        def tell(line: str) -> None:
            telling.append(asyncio.ensure_future(context.session.report_progress(len(telling) + 1, None, line)))

        folder = self.allowed.folder if self.allowed.code else None
        try:
            answer = await self.workers.ask(with_json(words), folder, tell, show=show)
        finally:
            await asyncio.gather(*telling, return_exceptions=True)
        document = answer.document or {"error": "the command gave no document", "hint": "run it in a terminal"}
        return _refused(document) if "error" in document else self._given(answer, document, words)

    def _given(self, answer: Answer, document: dict[str, Any], words: list[str]) -> types.CallToolResult:
        number = next(self._numbers)
        self._documents[number] = document
        if len(self._documents) > STORED:
            self._documents.popitem(last=False)
        screen = answer.screen or {"text": json.dumps(document)}
        text = str(screen["text"])
        if len(text) > LONGEST:
            text = (
                f"{text[:LONGEST]}\n... {len(text) - LONGEST:,} characters more: call {READ} with answer {number} and a pointer"
            )
        link = types.ResourceLink(
            name=f"answer {number}",
            uri=f"{RESOURCE}{number}",
            description=f"The whole document; {READ} reads parts of it.",
            mime_type="application/json",
        )
        data = {k: v for k, v in screen.items() if k != "text"}
        data |= {"code": answer.code, "command": line_of(words), "answer": number, "document": [*document]}
        return types.CallToolResult(content=[types.TextContent(text=text), link], structured_content=data)

    def _read(self, given: Mapping[str, Any]) -> types.CallToolResult:
        number, pointer = given.get("answer"), given.get("pointer", "")
        if not isinstance(number, int) or number not in self._documents:
            raise InputError(f"there is no answer {number!r}", hint=f"the last {STORED} answers are stored; ask again")
        if not isinstance(pointer, str):
            raise InputError(f"pointer: {pointer!r} is not text", hint="write it like /best/strategy")
        part: Any = self._documents[number]
        for step in pointer.split("/")[1:] if pointer else ():
            key = step.replace("~1", "/").replace("~0", "~")
            try:
                part = part[int(key)] if isinstance(part, list) else part[key]
            except (KeyError, IndexError, ValueError, TypeError):
                raise InputError(f"pointer: there is no {key!r} in {pointer!r}", hint=f"there is {_inside(part)}") from None
        text = json.dumps(part)
        if len(text) > LONGEST:
            raise InputError(f"that part has {len(text):,} characters", hint=f"name a smaller one; it has {_inside(part)}")
        return types.CallToolResult(content=[types.TextContent(text=text)])

    async def list_resources(self, _: Any, __: Any) -> types.ListResourcesResult:
        """The documents of the last answers."""
        made = [types.Resource(name=f"answer {n}", uri=f"{RESOURCE}{n}", mime_type="application/json") for n in self._documents]
        return types.ListResourcesResult(resources=made)

    async def read_resource(self, _: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        """A whole document."""
        from mcp.shared.exceptions import MCPError

        number = str(params.uri).removeprefix(RESOURCE)
        if not number.isdigit() or int(number) not in self._documents:
            message = f"there is nothing at {str(params.uri)[:100]}; the last {STORED} answers are stored: ask again"
            raise MCPError(types.INVALID_PARAMS, message)
        text = json.dumps(self._documents[int(number)])
        contents = types.TextResourceContents(uri=params.uri, mime_type="application/json", text=text)
        return types.ReadResourceResult(contents=[contents])


def server(allowed: Allowed) -> Server[Any]:
    """The server, with its processes started and stopped with it."""
    questions = Questions(allowed)
    return Server(
        "gpuwise",
        version=__version__,
        instructions=INSTRUCTIONS,
        lifespan=questions.lifespan,
        on_list_tools=questions.list_tools,
        on_call_tool=questions.call_tool,
        on_list_resources=questions.list_resources,
        on_read_resource=questions.read_resource,
    )


async def serve_stdio(allowed: Allowed) -> None:
    """Answer on stdin and stdout until the client leaves."""
    made = server(allowed)
    try:
        async with stdio_server() as (read, write):
            await made.run(read, write, made.create_initialization_options())
    except* BrokenPipeError:  # the client left in the middle of a message
        pass


def serve_http(listening: socket.socket, allowed: Allowed, token: str, ready: Callable[[], None]) -> None:
    """Answer at ``/mcp`` until interrupted, those that send ``token``; ``ready`` is called once it listens."""
    from gpuwise.ui.server import server_of

    server_of(Bearer(server(allowed).streamable_http_app(), token), ready).run([listening])


class Bearer:
    """Passes requests with ``Authorization: Bearer TOKEN`` to ``app``; the names of the host are checked below it."""

    def __init__(self, app: App, token: str) -> None:
        self._app, self._header = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from gpuwise.ui.guard import answer

        given = [value for name, value in scope.get("headers", ()) if name.lower() == b"authorization"]
        if scope["type"] == "http" and not (len(given) == 1 and hmac.compare_digest(given[0], self._header)):
            await answer(
                send, 401, "the token is missing or of another run", "send the header that `gpuwise mcp` printed", page=False
            )
            return
        await self._app(scope, receive, send)


def _tool(tool: Tool) -> types.Tool:
    runs_code = tool.allowed.code and any(f.own_code for f in tool.fields.values())
    hints = types.ToolAnnotations(read_only_hint=not runs_code, open_world_hint=False)
    return types.Tool(name=tool.name, description=tool.description, input_schema=tool.schema, annotations=hints)


def _refused(document: Mapping[str, Any]) -> types.CallToolResult:
    faults = document.get("faults") or [document]
    text = "\n".join(f"error: {f['error']}\nhint: {f['hint']}" for f in faults)
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


def _inside(part: Any) -> str:
    """What a part of a document has, for a hint."""
    if isinstance(part, list):
        return f"a list of {len(part)}: 0 to {len(part) - 1}"
    return ", ".join(part) if isinstance(part, dict) else "a single value"
