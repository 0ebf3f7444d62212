"""``gpuwise ui``: all of it in the browser, on this machine only."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gpuwise.errors import InputError, require


def ui(
    *,
    port: Annotated[int | None, Parameter(show_default="8317", metavar="PORT")] = None,
    host: Annotated[str, Parameter(metavar="ADDRESS")] = "127.0.0.1",
    folder: Path | None = None,
    browser: bool = True,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """The same questions in the browser, on this machine only.

    Opens a page with the questions and answers of the commands. No data leaves this machine. The address contains a token
    that is valid for this run only. Ends on Ctrl-C.

    Parameters
    ----------
    port
        Port to listen on: 8317, or 0 for a free one.
    host
        Address to listen on: 0.0.0.0 for other machines. Anyone with the token can run any query you can.
    folder
        Folder of your own code for the page Fit. A button on the page can run files in it. Without it: the current folder.
    browser
        Open the page in the browser; --no-browser only prints its address.
    json
        One JSON document on the last line of stdout, with the address, once the page can be opened.
    """
    for library in ("starlette", "uvicorn"):
        require(library, "the page")
    from gpuwise.ui.server import USUAL_PORT, bind, is_loopback, serve

    place = (folder or Path()).absolute()
    if not place.is_dir():
        raise InputError(f"{place} is not a folder", hint="name the one with your own code")
    listening = bind(host, USUAL_PORT if port is None else port)

    def ready(address: str) -> None:
        if json:
            from gpuwise.cli.out import print_json

            print_json({"address": address, "port": listening.getsockname()[1], "loopback": is_loopback(listening)})
        else:
            sys.stdout.write(f"gpuwise is at {address}\nCtrl-C ends it.\n")
        sys.stdout.flush()
        if not is_loopback(listening):
            sys.stderr.write(f"warning: everyone who reaches {host} and knows the token can use this, unencrypted\n")
            sys.stderr.flush()
        if browser:
            import webbrowser

            webbrowser.open(address)

    try:
        serve(listening, place, ready)
    except KeyboardInterrupt:
        return 0
    finally:
        listening.close()
    return 0
