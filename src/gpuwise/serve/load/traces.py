"""Recorded requests: Azure's and plain CSV, Mooncake's JSON lines with block hashes, ShareGPT's conversations.

=========  ======================================================================  =============================
format     known by                                                                prompts share
=========  ======================================================================  =============================
Azure      CSV with TIMESTAMP, ContextTokens, GeneratedTokens                       unknown
plain      CSV with arrival_s, input_tokens, output_tokens [, hash_ids]              hash_ids, where given
Mooncake   JSON lines with timestamp (ms), input_length, output_length, hash_ids     chained hashes of 512 tokens
ShareGPT   a JSON array of conversations ({"conversations": [{"from", "value"}]})     turns of a conversation
=========  ======================================================================  =============================
"""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from gpuwise.errors import FieldError, InputError
from gpuwise.files import GIB, csv_rows, parse_json, read_text
from gpuwise.serve.load.requests import Requests, texts_of_hashes
from gpuwise.units import LONGEST_SEQUENCE, MILLI, format_duration

BLOCK_TOKENS = 512
"""Tokens of a hash in Mooncake's traces (FAST25-release/README.md)."""
MOST_BYTES = GIB
MOST_REQUESTS = 2_000_000
CHARACTERS_PER_TOKEN = 4.0
"""English text (OpenAI's rule of thumb, help.openai.com "What are tokens"): conversations come without token counts."""
GAP_S, GAP_MEANS = 60.0, 50.0
"""A pause longer than both (seconds, and multiples of the mean gap) is reported."""
HOLE_SHARE = 0.5
"""A pause of at least this share of a trace is a hole: no mean rate is meaningful."""
MINUTE_S = 60.0
_COLUMNS = {
    "arrival": ("arrival_s", "arrival_time_s", "arrival", "timestamp_s"),
    "prompt": ("input_tokens", "prompt_tokens", "input_length", "num_prefill_tokens", "contexttokens"),
    "output": ("output_tokens", "completion_tokens", "output_length", "num_decode_tokens", "generatedtokens"),
    "hashes": ("hash_ids",),
}


@dataclass(frozen=True, slots=True)
class Trace:
    """``timed`` False: the file has no arrival times; requests are one second apart. ``notes`` are remarks for the answer."""

    name: str
    format: str
    requests: Requests
    timed: bool
    notes: tuple[str, ...]

    @property
    def peak_over_mean(self) -> float:
        """Requests of the busiest minute over the mean minute; 1 for less than two minutes."""
        arrival = self.requests.arrival_s
        span = float(arrival[-1]) if len(arrival) else 0.0
        if not self.timed or span < 2 * MINUTE_S:
            return 1.0
        minutes = np.bincount((arrival // MINUTE_S).astype(np.int64))
        return max(float(minutes.max() / (len(arrival) / (span / MINUTE_S))), 1.0)


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    arrival_s: float
    prompt: int
    output: int
    hashes: tuple[int, ...] | None


def read_trace(path: Path) -> Trace:
    """The requests of a file. Raises InputError or FieldError (with the line) on what cannot be replayed."""
    text = read_text(path, most=MOST_BYTES, hint="give a trace: CSV, JSON lines or JSON, unpacked")
    head = text.lstrip()[:1]
    if head == "[":
        return _conversations(path.name, text)
    rows = list(_json_rows(path.name, text) if head == "{" else _csv_rows(path.name, text))
    if not rows:
        raise InputError(f"{path.name} has no requests", hint="one line a request: arrival_s,input_tokens,output_tokens")
    _check_times(path.name, rows)
    arrival = np.array([r.arrival_s for r in rows])
    requests = Requests(
        arrival - arrival[0], np.array([r.prompt for r in rows], np.int64), np.array([r.output for r in rows], np.int64)
    )
    hashed = [r.hashes for r in rows if r.hashes is not None]
    if hashed and len(hashed) != len(rows):
        bare = next(r.line for r in rows if r.hashes is None)
        raise FieldError("some requests have hash_ids and this one has none", file=path.name, line=bare, field="hash_ids")
    if hashed:
        owner, texts = texts_of_hashes(hashed, BLOCK_TOKENS)
        requests = replace(requests, text=owner, texts=texts)
    form = "Mooncake" if head == "{" else "Azure" if "contexttokens" in text[:200].lower() else "CSV"
    return Trace(path.name, form, requests, True, _notes(rows))


def refuse_beyond(trace: Trace, context: int, *, drop: bool = False) -> Trace:
    """``trace`` without requests longer than ``context`` tokens, if ``drop``. Raises InputError for any otherwise, and when
    none is left."""
    longer = trace.requests.longer_than(context)
    if not len(longer):
        return trace
    count = (
        f"{len(longer):,} of {len(trace.requests):,} requests of {trace.name} are longer than the context of {context:,} tokens"
    )
    if not drop:
        first = int(longer[0])
        tokens = int(trace.requests.prompt_tokens[first] + trace.requests.output_tokens[first])
        raise InputError(
            f"{count}: the {first + 1}. takes {tokens:,}", hint="--drop-long leaves them out, as an engine refuses them"
        )
    if len(longer) == len(trace.requests):
        raise InputError(f"all {count.split(' of ', 1)[1]}", hint="take a model with a longer context")
    rest = np.setdiff1d(np.arange(len(trace.requests)), longer)
    return Trace(trace.name, trace.format, trace.requests.select(rest), trace.timed, (*trace.notes, count + " and dropped"))


def _csv_rows(file: str, text: str) -> Iterator[_Row]:
    rows = csv_rows(text, file, strict=False)
    header = next(rows, None)
    if header is None:
        return
    names = [n.strip().lower() for n in header[1]]
    at = {part: next((names.index(n) for n in known if n in names), None) for part, known in _COLUMNS.items()}
    stamp = names.index("timestamp") if "timestamp" in names else None
    lacking = [_COLUMNS[p][0] for p in ("prompt", "output") if at[p] is None]
    if at["arrival"] is None and stamp is None:
        lacking.insert(0, "arrival_s")
    if lacking:
        hint = "the first line names the columns: arrival_s,input_tokens,output_tokens (or Azure's)"
        raise FieldError(f"no column {' and no '.join(lacking)}", file=file, line=1, hint=hint)
    start: datetime.datetime | None = None
    for line, cells in rows:
        if not any(c.strip() for c in cells):
            continue
        if len(cells) < len(names):
            raise FieldError(f"{len(cells)} cells of {len(names)}", file=file, line=line, hint="a cut line? take it out")

        def cell(part: str, cells: Sequence[str] = cells) -> str:
            place = at[part]
            assert place is not None
            return cells[place].strip()

        if at["arrival"] is not None:
            arrival = _number(cell("arrival"), file, line, "arrival_s")
        else:
            assert stamp is not None
            moment = _moment(cells[stamp].strip(), file, line)
            start = start or moment
            arrival = (moment - start).total_seconds()
        hashes = None
        if at["hashes"] is not None and cell("hashes"):
            hashes = tuple(_whole(h, file, line, "hash_ids", 0) for h in cell("hashes").split())
        prompt, output = (_whole(cell(p), file, line, _COLUMNS[p][0], 1) for p in ("prompt", "output"))
        yield _Row(line, arrival, prompt, output, hashes)


def _json_rows(file: str, text: str) -> Iterator[_Row]:
    for line, words in enumerate(text.splitlines(), 1):
        if not words.strip():
            continue
        row = parse_json(words, file, line=line, hint="a cut line? take it out")
        if not isinstance(row, dict):
            raise FieldError("not an object", file=file, line=line, hint="one JSON object a line")
        fields = cast("dict[str, Any]", row)
        prompt = _whole(_field(fields, ("input_length", "input_tokens", "input_toks"), file, line), file, line, "input_length", 1)
        output = _whole(
            _field(fields, ("output_length", "output_tokens", "output_toks"), file, line), file, line, "output_length", 1
        )
        if "arrival_s" in fields:
            arrival = _number(fields["arrival_s"], file, line, "arrival_s")
        elif "arrival_time_ns" in fields:
            arrival = _number(fields["arrival_time_ns"], file, line, "arrival_time_ns") * 1e-9
        else:
            arrival = _number(_field(fields, ("timestamp",), file, line), file, line, "timestamp") * MILLI
        ids = fields.get("hash_ids")
        if ids is not None and not isinstance(ids, list):
            raise FieldError("hash_ids is not a list", file=file, line=line, field="hash_ids", hint="Mooncake's form")
        hashes = None if ids is None else tuple(_whole(h, file, line, "hash_ids", 0) for h in cast("list[Any]", ids))
        yield _Row(line, arrival, prompt, output, hashes)


def _field(row: Mapping[str, Any], names: Sequence[str], file: str, line: int) -> Any:
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise FieldError(
        f"no {names[0]}", file=file, line=line, field=names[0], hint="Mooncake's: timestamp, input_length, output_length"
    )


def _number(value: Any, file: str, line: int, field: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        said = "is empty" if value in ("", None) else f"{value!r} is not a number"
        raise FieldError(f"{field} {said}", file=file, line=line, field=field, hint="every request needs one: no gaps")
    return number


def _whole(value: Any, file: str, line: int, field: str, least: int) -> int:
    number = _number(value, file, line, field)
    if number != int(number) or not least <= number <= max(LONGEST_SEQUENCE, 2**62 if field == "hash_ids" else 0):
        hint = f"whole tokens, from {least} to {LONGEST_SEQUENCE:,}"
        raise FieldError(f"{field} of {value} cannot be", file=file, line=line, field=field, hint=hint)
    return int(number)


def _moment(text: str, file: str, line: int) -> datetime.datetime:
    """``2023-11-16 18:15:46.6805900``: Azure writes seven decimals."""
    whole, _, part = text.partition(".")
    digits = part[: len(part) - len(part.lstrip("0123456789"))]
    try:
        words = f"{whole}.{digits[:6].ljust(6, '0')}{part[len(digits) :]}" if digits else text
        moment = datetime.datetime.fromisoformat(words)
        return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    except ValueError:
        raise FieldError(
            f"TIMESTAMP {text!r} is not a time", file=file, line=line, hint="for example 2023-11-16 18:15:46.68"
        ) from None


def _check_times(file: str, rows: Sequence[_Row]) -> None:
    """Times ascend and nothing is a hole. Raises FieldError and InputError."""
    if len(rows) > MOST_REQUESTS:
        raise InputError(f"{file} has {len(rows):,} requests", hint="replay a part of it: a few thousand suffice")
    before: _Row | None = None
    for row in rows:
        if row.arrival_s < 0:
            hint = "times count from the start of the trace, in seconds"
            raise FieldError(f"arrives at {row.arrival_s:g} s, before the trace", file=file, line=row.line, hint=hint)
        if before is not None and row.arrival_s < before.arrival_s:
            back = format_duration(before.arrival_s - row.arrival_s)
            hint = "requests must be in order of arrival: sort the file by time"
            raise FieldError(f"arrives {back} before the line above it", file=file, line=row.line, hint=hint)
        before = row
    span = rows[-1].arrival_s - rows[0].arrival_s
    for a, b in itertools.pairwise(rows):
        pause = b.arrival_s - a.arrival_s
        if len(rows) > 2 and pause > HOLE_SHARE * span and pause > GAP_S:
            hint = "replay the part before or after it as its own file"
            raise FieldError(
                f"nothing arrived for {format_duration(pause)}, {pause / span:.0%} of the trace",
                file=file,
                line=b.line,
                hint=hint,
            )


def _notes(rows: Sequence[_Row]) -> tuple[str, ...]:
    """Pauses worth a word, the longest of them."""
    span = rows[-1].arrival_s - rows[0].arrival_s
    mean = span / max(len(rows) - 1, 1)
    pauses = [(b.arrival_s - a.arrival_s, b.line) for a, b in itertools.pairwise(rows)]
    longest, line = max(pauses, default=(0.0, 0))
    if longest < max(GAP_S, GAP_MEANS * mean):
        return ()
    return (
        f"nothing arrives for {format_duration(longest)} before line {line}, where requests are {format_duration(mean)} apart",
    )


def _conversations(file: str, text: str) -> Trace:
    """ShareGPT: each turn of a person is a request that reads all turns before it; no arrival times."""
    talks = parse_json(text, file, hint="an array of conversations")
    prompt, output, owner = list[int](), list[int](), list[int]()
    for number, talk in enumerate(talks):
        turns = cast("dict[str, Any]", talk).get("conversations") if isinstance(talk, dict) else None
        if not isinstance(turns, list):
            raise FieldError(
                f"conversation {number + 1} has no list of turns", file=file, field="conversations", hint="ShareGPT's form"
            )
        read = 0
        for turn in cast("list[Any]", turns):
            if not isinstance(turn, dict):
                raise FieldError(f"a turn of conversation {number + 1} is not an object", file=file, hint="ShareGPT's form")
            said = cast("dict[str, Any]", turn)
            tokens = max(round(len(str(said.get("value") or "")) / CHARACTERS_PER_TOKEN), 1)
            if said.get("from") in ("gpt", "assistant", "chatgpt", "bing", "bard") and read:
                prompt.append(read)
                output.append(tokens)
                owner.append(number)
            read += tokens
    if not prompt:
        raise InputError(f"{file} has no answered question", hint="an array of conversations between human and gpt")
    n = len(prompt)
    requests = Requests(
        np.arange(n, dtype=np.float64), np.array(prompt, np.int64), np.array(output, np.int64), np.array(owner, np.int64)
    )
    note = f"tokens are counted as characters / {CHARACTERS_PER_TOKEN:g}; arrivals are Poisson, for the file has none"
    return Trace(file, "ShareGPT", requests, False, (note,))
