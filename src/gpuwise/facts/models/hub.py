"""A model on the Hugging Face Hub, asked for its ``config.json`` and the headers of its weights alone.

What comes is kept in a folder with the repository's own file names, so that it is read as a folder of this machine: a file of
weights is its header, with the bytes of the whole file in a text beside it. No weights are fetched, and no code of a repository.

As in huggingface_hub, ``HF_ENDPOINT`` is the server, ``HF_TOKEN`` (or the file of ``hf auth login``) the token, and
``HF_HUB_OFFLINE`` keeps from asking.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, cast

from gpuwise.errors import FileError, GpuwiseError, InputError
from gpuwise.facts.models.gguf import header_length
from gpuwise.facts.models.names import GGUF_TYPE
from gpuwise.facts.models.safetensors import INDEX, MOST_HEADER, SIZE_SUFFIX
from gpuwise.files import MIB, read_text, write_whole

SECONDS = 5.0
"""For all that is asked of one model; then what is known without the Hub answers."""
NAME = re.compile(r"(?:hf\.co/|huggingface\.co/)?([\w.-]{1,96}/[\w.-]{1,96})(?::([\w.-]+))?", re.IGNORECASE)
"""``org/name``, with a quantisation of llama.cpp behind a colon."""
USUAL_FILES = ("Q4_K_M", "UD-Q4_K_XL", "Q4_K_XL", "Q4_0", "MXFP4", "Q8_0")
"""Of several GGUF files the first that is there, as ``llama-server -hf`` chooses."""
MOST_PARTS = 12
"""Files whose headers are asked for; of a model in more the index alone is read."""
_PART = re.compile(r"-\d{5}-of-(\d{5})(?=\.gguf$)")
"""In the name of one of several files of a model, the number of the part and how many there are."""
_MOST_TEXT = 32 * MIB
_FIRST = 256 * 1024
"""Bytes asked for first of a file of weights: headers of safetensors are shorter."""
_TRUE = frozenset({"1", "on", "yes", "true"})


class NoAnswerError(InputError):
    """The Hub did not answer, or is not to be asked."""


def endpoint() -> str:
    """The server to ask."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def is_offline() -> bool:
    """Whether the environment says not to ask."""
    return any(os.environ.get(name, "").lower() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def cache_folder() -> Path:
    """Where answers are kept."""
    home, cache = os.environ.get("GPUWISE_HOME"), os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path(cache or "~/.cache") / "gpuwise").expanduser() / "hub"


def fetch_model(text: str) -> Path | None:
    """The folder or file with the headers of the model called ``org/name`` or ``org/name:Q4_K_M``, from the cache or the Hub;
    None where ``text`` is no such name, or the Hub is not to be asked.

    Raises NoAnswerError where it did not answer within :data:`SECONDS`, InputError for a model that it does not have or does
    not show.
    """
    match = NAME.fullmatch(text.strip())
    if match is None:
        return None
    name, quant = match[1], match[2]
    folder = cache_folder() / name.replace("/", "--")
    kept = _kept(folder, quant)
    if kept is not None:
        return kept
    if is_offline():
        return None
    return _within_time(_Fetch(name, folder), quant)


def _within_time(asked: _Fetch, quant: str | None) -> Path:
    """The answer of ``asked``, waited for no longer than its limit: a name server that does not answer has none of its own."""
    found: list[Path | GpuwiseError] = []

    def ask() -> None:
        try:
            found.append(asked.fetch(quant))
        except GpuwiseError as error:  # raised again by the one who waits
            found.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS + 1.0)
    if not found:
        raise asked.silent(TimeoutError())
    if isinstance(found[0], GpuwiseError):
        raise found[0]
    return found[0]


def _without(name: str) -> str:
    return f"give a folder, a .gguf file, or the config.json of {name}"


def _kept(folder: Path, quant: str | None) -> Path | None:
    if quant is None and (folder / "complete").is_file():
        return folder if (folder / "config.json").is_file() else _one_gguf(folder)
    if quant is not None and folder.is_dir():
        for done in folder.glob("*.gguf" + SIZE_SUFFIX):
            if _quant_in(done.name.removesuffix(SIZE_SUFFIX)) == quant.upper():
                return _first_part(folder / done.name.removesuffix(SIZE_SUFFIX))
    return None


def _one_gguf(folder: Path) -> Path | None:
    named = read_text(folder / "complete").strip()
    path = folder / Path(named).name
    return path if named and path.is_file() else None


def _first_part(path: Path) -> Path:
    return path.with_name(_PART.sub(r"-00001-of-\1", path.name))


def _quant_in(file: str) -> str:
    """The quantisation that a GGUF file's name ends with, in capitals; empty where it says none."""
    stem = _PART.sub("", Path(file).name.lower()).removesuffix(".gguf")
    found = re.search(rf"(?:^|[-._])({GGUF_TYPE.pattern})$", stem)
    return found[1].upper() if found else ""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to another host (a CDN) without the token."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None:
            parts = urllib.parse.urlsplit(newurl)
            if parts.scheme not in ("http", "https"):
                raise urllib.error.URLError(f"redirected to {parts.scheme}")
            if parts.netloc != urllib.parse.urlsplit(req.full_url).netloc:
                made.remove_header("Authorization")
        return made


class _Fetch:
    """All questions about one model, within one limit of time."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.until = time.monotonic() + SECONDS
        self.open = urllib.request.build_opener(_Redirects()).open

    def fetch(self, quant: str | None) -> Path:
        about = self.ask(f"/api/models/{self.name}")
        rows = cast("list[dict[str, object]]", about.get("siblings") or [])
        files = [str(row.get("rfilename")) for row in rows if isinstance(row.get("rfilename"), str)]
        if not files:
            raise InputError(f"{self.name} on the Hub has no files", hint=_without(self.name))
        self.folder.mkdir(parents=True, exist_ok=True)
        ggufs = [f for f in files if f.lower().endswith(".gguf") and "mmproj" not in f.lower()]
        if quant is not None or (ggufs and "config.json" not in files):
            return self.gguf(ggufs, quant)
        if "config.json" not in files:
            raise InputError(f"{self.name} on the Hub has no config.json and no .gguf file", hint=_without(self.name))
        self.keep("config.json", self.text("config.json", 4 * MIB))
        weights = [
            f for f in files if f.endswith(".safetensors") and "/" not in f and not f.startswith(("adapter", "consolidated"))
        ]
        if 0 < len(weights) <= MOST_PARTS:
            if INDEX in files:
                self.keep(INDEX, self.text(INDEX, _MOST_TEXT))
            for file in weights:
                self.header(file, _safetensors_length)
        self.keep("complete", b"")
        return self.folder

    def gguf(self, files: Sequence[str], quant: str | None) -> Path:
        by_quant: dict[str, list[str]] = {}
        for file in files:
            by_quant.setdefault(_quant_in(file), []).append(file)
        has = ", ".join(sorted(q for q in by_quant if q))
        wanted = [quant.upper()] if quant else [q for q in USUAL_FILES if q in by_quant] or sorted(by_quant)
        chosen = by_quant.get(wanted[0]) if wanted else None
        if not chosen:
            raise InputError(f"{self.name} has no {quant} file", hint=f"it has {has or 'no .gguf file'}")
        if len(chosen) > 1 and not all(map(_PART.search, chosen)):
            raise InputError(f"{self.name} has {len(chosen)} files of {wanted[0]}", hint=f"download one: {chosen[0]}")
        paths = [self.header(file, header_length) for file in sorted(chosen)]
        if quant is None:
            self.keep("complete", paths[0].name.encode())
        return paths[0]

    def header(self, file: str, length: Callable[[bytes], int | None]) -> Path:
        """The beginning of a file of weights as far as its header goes (``length`` of what is there; None: more is needed)."""
        content, size, most = b"", 0, _FIRST
        while True:
            part, size = self.part(file, len(content), most)
            content += part
            needed = length(content)
            if (needed is not None and needed <= len(content)) or len(content) >= size:
                break
            most = needed - len(content) if needed is not None else min(4 * len(content), 16 * MIB)
            if len(content) + most > 2 * MOST_HEADER:
                raise FileError("has a header too long to be one", file=f"{self.name}/{file}", hint=_without(self.name))
        path = self.folder / Path(file).name
        write_whole(path, content[: needed or len(content)])
        write_whole(path.with_name(path.name + SIZE_SUFFIX), str(size))
        return path

    def keep(self, file: str, content: bytes) -> None:
        write_whole(self.folder / file, content)

    def ask(self, path: str) -> dict[str, object]:
        content = self.request(path, {}, _MOST_TEXT)[0]
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise NoAnswerError(f"{endpoint()} does not answer as the Hub does", hint="check HF_ENDPOINT")
        return cast("dict[str, object]", found)

    def text(self, file: str, most: int) -> bytes:
        return self.request(f"/{self.name}/resolve/main/{urllib.parse.quote(file)}", {}, most)[0]

    def part(self, file: str, begin: int, most: int) -> tuple[bytes, int]:
        """``most`` bytes of a file from ``begin`` on, and the bytes of the whole file."""
        path = f"/{self.name}/resolve/main/{urllib.parse.quote(file)}"
        content, headers = self.request(path, {"Range": f"bytes={begin}-{begin + most - 1}"}, most)
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", headers.get("Content-Range") or "")
        if found is None or int(found[1]) != begin:
            raise NoAnswerError(f"{endpoint()} does not send parts of files", hint=_without(self.name))
        return content, int(found[2])

    def request(self, path: str, headers: dict[str, str], most: int) -> tuple[bytes, Any]:
        """At most ``most`` bytes behind ``path``, and the headers. Raises NoAnswerError, InputError."""
        asked = urllib.request.Request(endpoint() + path, headers={"User-Agent": "gpuwise", **headers, **_authorization()})
        try:
            with self.open(asked, timeout=self.left()) as answer:
                parts: list[bytes] = []
                n = 0
                while n <= most and (chunk := answer.read1(min(MIB, most + 1 - n))):
                    parts.append(chunk)
                    n += len(chunk)
                    self.left()
                stated = answer.headers.get("Content-Length")
                if stated is not None and stated.isdigit() and n < min(int(stated), most):
                    raise NoAnswerError(f"the answer of {endpoint()} was cut off", hint="try again")
                if n > most and "Range" not in headers:
                    raise InputError(
                        f"{self.name} on the Hub has a file too large to be a configuration", hint=_without(self.name)
                    )
                return b"".join(parts)[:most], answer.headers
        except urllib.error.HTTPError as error:
            with error:
                raise self.refused(error.code, error.headers) from None
        except (TimeoutError, urllib.error.URLError, OSError, HTTPException) as error:
            raise self.silent(error) from None

    def left(self) -> float:
        """Seconds left. Raises TimeoutError."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def silent(self, error: Exception) -> NoAnswerError:
        reason = getattr(error, "reason", error)
        why = f"within {SECONDS:g} s" if isinstance(reason, TimeoutError) else f"({str(reason)[:80] or type(reason).__name__})"
        return NoAnswerError(f"{endpoint()} did not answer {why}", hint=f"{_without(self.name)}, or try again")

    def refused(self, code: int, headers: Any) -> InputError:
        page = f"{endpoint()}/{self.name}"
        if code in (401, 403):
            gated = (headers.get("X-Error-Code") if headers else "") == "GatedRepo" or _authorization()
            if gated:
                return InputError(f"{self.name} is gated on the Hub", hint=f"accept its licence at {page}, then set HF_TOKEN")
            return InputError(
                f"{self.name} is not on the Hub, or is gated", hint=f"check the name at {page}; for a gated model set HF_TOKEN"
            )
        if code in (404, 410):
            return InputError(f"{self.name} is not on the Hub", hint=f"check the name, or {_without(self.name)}")
        if code == 429:
            after = (headers.get("Retry-After") if headers else "") or "some"
            return NoAnswerError("the Hub answers that it was asked too often (429)", hint=f"try again in {after} s")
        return NoAnswerError(f"the Hub answers {code}", hint=f"try again, or {_without(self.name)}")


def _authorization() -> dict[str, str]:
    token = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN") or ""
    if not token:
        home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
        path = Path(os.environ.get("HF_TOKEN_PATH") or Path(home) / "token").expanduser()
        try:
            token = read_text(path, most=4096) if path.is_file() else ""
        except FileError:
            token = ""
    token = token.strip()
    return {"Authorization": f"Bearer {token}"} if token and token.isprintable() else {}


def _safetensors_length(content: bytes) -> int | None:
    return 8 + int.from_bytes(content[:8], "little") if len(content) >= 8 else None


__all__ = ["NAME", "NoAnswerError", "cache_folder", "fetch_model", "is_offline"]
