"""What programs read: JSON Schemas of the documents of ``--json``, the OpenAPI document of the page's own API, ``llms.txt``.

The fields of a document are those that ``tests/interface.json`` promises, which a test compares with the answers; a number's
unit is the end of its name (docs/concepts/units.md).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuwise import __version__
from gpuwise.ui.questions import QUESTIONS, Field, Question

ROOT = Path(__file__).parents[2]
ANSWERS_VERSION = 1
"""Rises when a field changes its meaning or goes; a new field leaves it."""
UNITS: Mapping[str, str] = {
    "_bytes_per_s": "bytes per second",
    "_flop_per_s": "FLOP per second",
    "_tokens_per_s": "tokens per second",
    "tokens_per_s": "tokens per second",
    "_per_s": "per second",
    "_s": "seconds",
    "_bytes": "bytes",
    "_usd": "US dollars",
    "_usd_per_hour": "US dollars per hour",
    "_w": "watts",
    "_kwh": "kilowatt-hours",
    "_hz": "hertz",
    "_share": "share, 0 to 1",
    "_probability": "share, 0 to 1",
}
ESTIMATE = {
    "type": "object",
    "description": "An estimate: the ends of the 80 % interval, the value between them, and what it is based on.",
    "properties": {
        **{name: {"type": ["number", "null"]} for name in ("low", "expected", "high")},
        "basis": {
            "type": ["string", "null"],
            "description": "measured, fitted, derived from the family, or the data sheet alone",
        },
    },
    "required": ["low", "expected", "high", "basis"],
}
REFUSAL = {
    "type": "object",
    "description": "What any command prints instead of an answer, with exit code 1 or 2.",
    "properties": {
        "error": {"type": "string"},
        "hint": {"type": "string"},
        "faults": {"type": "array", "items": {"type": "object"}, "description": "Each of several faults."},
    },
    "required": ["error", "hint"],
}
SEVERAL: Mapping[str, tuple[str, ...]] = {"tune and run": ("tune", "run", "validate")}
"""Groups of promised fields of several commands; another is of the command that it begins with."""
Tree = dict[str, "Tree"]
LIST = "[]"


# --- documents of --json ---


def answers_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of every document, a definition for each command; objects that occur often are shared."""
    promised: Mapping[str, Sequence[str]] = json.loads((ROOT / "tests" / "interface.json").read_text(encoding="utf-8"))["fields"]
    fields: dict[str, list[str]] = {}
    for group, paths in promised.items():
        for command in SEVERAL.get(group, (group.split()[0],)):
            fields.setdefault(command, []).extend(paths)
    trees = {name: _tree(paths) for name, paths in fields.items()}
    counts: Counter[str] = Counter()
    names: dict[str, str] = {}
    for tree in trees.values():
        _count(tree, "", counts, names)
    shared: dict[str, str] = {}
    for key, n in counts.items():
        if n > 1:
            name, i = names[key], 2
            while name in shared.values():
                name, i = f"{names[key]}_{i}", i + 1
            shared[key] = name
    made: dict[str, Any] = {"estimate": ESTIMATE, "refusal": REFUSAL}
    made |= {name: _object(json.loads(key), shared) for key, name in shared.items()}
    made |= {document_name(command): {"type": "object", **_object(tree, shared)} for command, tree in trees.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Documents of gpuwise, version {ANSWERS_VERSION}",
        "description": "What each command prints with --json on the last line of stdout. A field may be absent where it does not "
        "apply; a later release may add fields.",
        "$defs": made,
    }


def document_name(command: str) -> str:
    """The definition of a command's document in the schema."""
    return f"gpuwise-{command}"


def _tree(paths: Sequence[str]) -> Tree:
    root: Tree = {}
    for path in paths:
        at = root
        for step in path.replace(LIST, f".{LIST}").split("."):
            at = at.setdefault(step, {})
    return root


def _is_estimate(tree: Tree) -> bool:
    return {"low", "expected", "high", "basis"} == tree.keys()


def _count(tree: Tree, name: str, counts: Counter[str], names: dict[str, str]) -> None:
    """How often each object of three fields and more occurs, and what it is called first."""
    if len(tree) > 2 and not _is_estimate(tree) and name:
        key = json.dumps(tree)
        counts[key] += 1
        names.setdefault(key, name)
        if counts[key] > 1:
            return
    for step, inner in tree.items():
        _count(inner, name if step in (LIST, "*") else step, counts, names)


def _object(tree: Tree, shared: Mapping[str, str]) -> dict[str, Any]:
    """Schema of an object with these fields; ``*`` stands for keys that are data. The type is open: a few fields are an object in
    one kind of answer and a number in another."""
    made: dict[str, Any] = {}
    own = {step: _field(step, inner, shared) for step, inner in tree.items() if step not in ("*", LIST)}
    if own:
        made["properties"] = own
    if "*" in tree:
        made["additionalProperties"] = _field("", tree["*"], shared)
    return made


def _field(name: str, tree: Tree, shared: Mapping[str, str]) -> dict[str, Any]:
    if not tree:
        unit = next((words for end, words in UNITS.items() if name.endswith(end)), None)
        about = f"A {unit}." if unit is not None and "share" in unit else f"In {unit}."
        return {} if unit is None else {"description": about}
    if _is_estimate(tree):
        return {"anyOf": [{"$ref": "#/$defs/estimate"}, {"type": ["number", "null"]}]}
    if LIST in tree:
        items = _field(name, tree[LIST], shared)
        return {"items": items} if items and len(tree) == 1 else {}
    key = json.dumps(tree)
    return {"$ref": f"#/$defs/{shared[key]}"} if key in shared else _object(tree, shared)


def answers_page() -> str:
    """The schema as a file."""
    return json.dumps(answers_schema(), indent=1) + "\n"


# --- the page's own API ---


def openapi() -> dict[str, Any]:
    """OpenAPI document of what the pages of ``gpuwise ui`` ask, from their table of questions."""
    paths: dict[str, Any] = {f"/api/ask/{name}": {"get": _ask(name, question)} for name, question in QUESTIONS.items()}
    for path, summary in (
        ("/api/names", "Names of models and GPUs, to complete what is typed"),
        ("/api/pages", "Pages, their questions and fields"),
        ("/api/files", "Own scripts in the folder of the page"),
        ("/api/state", "How many commands run"),
    ):
        body = {"application/json": {"schema": {}}}
        paths[path] = {
            "get": {"summary": summary, "responses": {"200": {"description": summary, "content": body}, **_refusals()}}
        }
    about = "Command lines and pages that answer a question in words"
    words = {"name": "q", "in": "query", "required": True, "schema": {"type": "string", "maxLength": 200}}
    reply = {"200": {"description": about, "content": {"application/json": {"schema": {}}}}, **_refusals()}
    paths["/api/heard"] = {"get": {"summary": about, "parameters": [words], "responses": reply}}
    answered = {
        "type": "object",
        "properties": {
            "code": {"type": "integer", "description": "Exit code of the command."},
            "command": {"type": "string", "description": "The command line that prints the same."},
            "document": {"type": "object", "description": "Its --json document, see answers.schema.json."},
        },
        "required": ["code", "command", "document"],
    }
    fault = {"allOf": [{"$ref": "#/components/schemas/Refusal"}]}
    token = {"type": "apiKey", "in": "query", "name": "token", "description": "From the address that `gpuwise ui` prints."}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gpuwise ui",
            "version": __version__,
            "description": "The loopback API of the pages of `gpuwise ui`: a question is a command with the fields of its page. "
            "A request needs the token of the run, once in the query or then as the cookie that it sets.",
        },
        "servers": [{"url": "http://127.0.0.1:8317"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": token},
            "schemas": {"Answer": answered, "Refusal": REFUSAL, "Fault": fault},
        },
    }


def _ask(name: str, question: Question) -> dict[str, Any]:
    answer = {"application/json": {"schema": {"$ref": "#/components/schemas/Answer"}}}
    return {
        "operationId": name,
        "summary": f"gpuwise {' '.join([question.command, *question.always])}",
        "parameters": [_parameter(field, question) for field in question.fields],
        "responses": {"200": {"description": "The answer", "content": answer}, **_refusals()},
    }


def _refusals() -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
    why = {
        "401": "No token yet",
        "403": "Another host, token or site",
        "405": "Another method than GET",
        "422": "What was asked is refused",
        "503": "Too many at once",
    }
    return {status: {"description": words, "content": content} for status, words in why.items()}


def _parameter(field: Field, question: Question) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "maxLength": 200}
    if field.kind == "flag":
        schema["enum"] = ["yes", "no"]
    elif field.kind == "choice":
        choices = "|".join(c.replace(".", r"\.") for c in field.choices)
        schema["pattern"] = f"^({choices})(,({choices}))*$"
    made: dict[str, Any] = {"name": field.name, "in": "query", "description": field.label, "schema": schema}
    if field.name in question.needs:
        made["required"] = True
    return made | ({"example": field.example} if field.example else {})


def openapi_page() -> str:
    """The document as a file."""
    return json.dumps(openapi(), indent=1) + "\n"


# --- llms.txt ---

_ENTRY = re.compile(r"- (?:\"?)([^\":]+(?:: [^\":]+)?)(?:\"?): (\S+\.md)$")


def llms_page() -> str:
    """What the documentation has, for a model that reads it: every page with its first sentence."""
    lines = [
        "# gpuwise",
        "",
        "> For any AI workload and any accelerator: does it fit, how fast is it, what does it cost, and what should change. "
        "A command line, a Python library, a page in the browser and tools for agents. Numbers have 80 % intervals.",
    ]
    docs = ROOT / "docs"
    for line in (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2].splitlines():
        entry = _ENTRY.search(line)
        if line and not line.startswith(" "):
            break
        if entry:
            lines += [""] if lines[-1].startswith(">") else []
            lines.append(f"- [{entry[1]}]({entry[2]}): {_first_sentence((docs / entry[2]).read_text(encoding='utf-8'))}")
        elif line.startswith("  - "):
            lines += ["", f"## {line.strip(' -:')}", ""]
    lines += ["", "## For programs", "", *(f"- [{name}](reference/{name}): {words}" for name, words in FILES.items())]
    return "\n".join(lines) + "\n"


FILES: Mapping[str, str] = {
    "answers.schema.json": "JSON Schema of every --json document",
    "plan.schema.json": "JSON Schema of plan files",
    "openapi.json": "the loopback API of gpuwise ui",
}
"""Files for programs in the reference."""


def _first_sentence(text: str) -> str:
    """The first sentence of a page's text."""
    body = [part for part in text.split("\n\n") if part and part[0] not in "#<!|`-"]
    words = " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", body[0]).split()) if body else ""
    return re.split(r"(?<=[.:?]) (?=[A-Z`])", words)[0]
