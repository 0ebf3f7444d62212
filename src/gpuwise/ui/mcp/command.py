"""``gpuwise mcp``: the questions as tools of an agent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuwise.errors import InputError, require

if TYPE_CHECKING:
    from gpuwise.ui.mcp.tools import Allowed

USUAL_PORT = 8318


def mcp(
    *,
    http: Annotated[bool, Parameter(negative="")] = False,
    port: Annotated[int | None, Parameter(show_default=str(USUAL_PORT), metavar="N")] = None,
    folder: Annotated[Path | None, Parameter(show_default="no file is read")] = None,
    allow_code: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Answer an agent's questions: a server of the Model Context Protocol, on stdin and stdout.

    An editor or an agent starts it itself: give it the command gpuwise with the argument mcp. With --http it listens on this
    machine's loopback address instead and prints the address and the header that clients send. Tools are the questions of the
    command line with its options; nothing is written, no address is reached, and files are read only inside --folder.

    Parameters
    ----------
    http
        Listen on http://127.0.0.1 instead of stdin and stdout.
    port
        Of --http; 0 takes a free one.
    folder
        Models (config.json, .gguf) and scripts may be named in this folder.
    allow_code
        Scripts in --folder may be run, to trace a step of them (fit, plan) or to profile them.
    json
        With --http: print the address and the header as JSON.
    """
    if allow_code and folder is None:
        raise InputError("--allow-code without --folder", hint="name the folder with the scripts: --folder .")
    if folder is not None and not folder.is_dir():
        raise InputError(f"{folder} is not a folder", hint="name the one with your models or scripts")
    if not http and (port is not None or json):
        raise InputError(f"--{'json' if json else 'port'} is for --http", hint="add --http")
    require("mcp", "the server for agents")
    from gpuwise.ui.mcp.tools import Allowed

    allowed = Allowed(None if folder is None else folder.absolute(), allow_code)
    if not http:
        import asyncio

        from gpuwise.ui.mcp.server import serve_stdio

        asyncio.run(serve_stdio(allowed))
        return 0
    return _over_http(USUAL_PORT if port is None else port, allowed, json=json)


def _over_http(port: int, allowed: Allowed, *, json: bool) -> int:
    import secrets

    from gpuwise.ui.mcp.server import serve_http
    from gpuwise.ui.server import LOOPBACK, bind

    listening, token = bind(LOOPBACK, port), secrets.token_urlsafe(32)
    address = f"http://{LOOPBACK}:{listening.getsockname()[1]}/mcp"

    def ready() -> None:
        if json:
            from gpuwise.cli.out import print_json

            print_json({"address": address, "header": f"Authorization: Bearer {token}"})
        else:
            sys.stdout.write(
                f"gpuwise answers at {address}\nHeader of every request:\n  Authorization: Bearer {token}\nCtrl-C ends it.\n"
            )
        sys.stdout.flush()

    try:
        serve_http(listening, allowed, token, ready)
    except KeyboardInterrupt:
        return 0
    finally:
        listening.close()
    return 0
