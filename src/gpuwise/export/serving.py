"""A server as ``gpuwise capacity`` chose it: the command that its answer prints (``serve.capacity.commands``). Tests read it by
the parsers of vllm and sglang where these are installed; the versions are those whose options it was written for."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from gpuwise.errors import InputError
from gpuwise.export.written import Written, wrapped

VERSIONS = {"vllm": "vllm 0.33", "sglang": "sglang 0.5.23", "trtllm": "TensorRT-LLM"}


def served(document: Mapping[str, Any], wanted: str | None) -> tuple[str, Written]:
    """The engine's name and ``serve.sh`` for one copy. Raises InputError where nothing is served, or by another engine."""
    service = document["served"]
    if service is None:
        raise InputError("nothing that was looked at keeps the targets", hint="`gpuwise capacity` says what comes nearest")
    try:
        start, copies = service["start"], int(service["copies"])
        name, words = str(start["for"]), shlex.split(start["command"])
        text = f"{VERSIONS[name]}: {document['model']} on {document['on']}, one copy of {copies}."
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"not an answer of capacity: {error}", hint="give what `gpuwise capacity MODEL .. --json` printed"
        ) from None
    if wanted not in (None, name):
        again = f"leave --to out, or ask for it: gpuwise capacity .. --engine {wanted}"
        raise InputError(f"the answer is for {name}, not for {wanted}", hint=again)
    notes = [note for note in (start.get("note"),) if note]
    notes += [f"{copies} copies carry the load: start as many, behind a balancer"] if copies > 1 else []
    lines = ["#!/usr/bin/env bash", f"# {text}", "set -euo pipefail", *wrapped(["exec", *words])]
    return name, Written(tuple(words), {"serve.sh": "\n".join(lines) + "\n"}, notes=tuple(notes))
