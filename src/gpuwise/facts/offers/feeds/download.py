"""A text from the network, or an error that explains the failure: with a limit on time and size."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException

from gpuwise.errors import UnpredictableError

SECONDS = 30.0
"""Seconds for one file, from the request to the last byte."""
MOST_BYTES = 64 * 2**20
"""SkyPilot's largest file is under 5 MB."""
_CHUNK = 2**16
OUT_OF_REACH = "price feed out of reach"
"""The reason when no server answered: asking the same server for more is idle."""
_HINT = "check the network; the shipped prices and those fetched before still serve"


def fetch_text(urls: Sequence[str], *, seconds: float = SECONDS, most_bytes: int = MOST_BYTES) -> str:
    """The text behind the first of ``urls`` that exists.

    Raises UnpredictableError when none does, the network is down, the time is up, or the text is too large,
    cut off, a web page or no UTF-8.
    """
    for url in urls:
        try:
            return _fetch(url, seconds, most_bytes)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in (404, 410):
                raise _failed(url, f"the server answers {error.code} {error.reason}") from error
        except urllib.error.URLError as error:
            late = isinstance(error.reason, TimeoutError)
            reason = f"no answer within {seconds:g} s" if late else str(error.reason)
            raise _failed(url, reason, OUT_OF_REACH) from error
        except TimeoutError as error:
            raise _failed(url, f"no answer within {seconds:g} s", OUT_OF_REACH) from error
        except (OSError, HTTPException) as error:
            raise _failed(url, str(error) or type(error).__name__) from error
    raise _failed(urls[0], "there is no such file (404)")


def _fetch(url: str, seconds: float, most_bytes: int) -> str:
    until = time.monotonic() + seconds
    request = urllib.request.Request(url, headers={"User-Agent": "gpuwise", "Accept-Encoding": "identity"})
    with urllib.request.urlopen(request, timeout=seconds) as answer:
        stated = answer.headers.get("Content-Length")
        if stated is not None and stated.isdigit() and int(stated) > most_bytes:
            raise _failed(url, f"the file is larger than {most_bytes / 2**20:g} MiB")
        parts: list[bytes] = []
        size = 0
        while chunk := answer.read1(_CHUNK):
            parts.append(chunk)
            size += len(chunk)
            if size > most_bytes:
                raise _failed(url, f"the file is larger than {most_bytes / 2**20:g} MiB")
            if time.monotonic() > until:
                raise TimeoutError
        if stated is not None and stated.isdigit() and size != int(stated):
            raise _failed(url, f"cut off after {size} of {stated} bytes")
    try:
        text = b"".join(parts).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _failed(url, f"it is not UTF-8 text (byte {error.start})") from error
    if text.lstrip()[:1] == "<":
        raise _failed(url, "a web page came instead of a file (a login or a proxy?)")
    return text


def _failed(url: str, why: str, reason: str = "unusable price file") -> UnpredictableError:
    return UnpredictableError(reason, f"cannot fetch {url}: {why[:200]}", hint=_HINT)
