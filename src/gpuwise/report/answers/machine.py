"""This machine: what the doctor found, what was measured before beside what is expected, and where the time of each rank of a run
went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import shorten
from typing import Any

from gpuwise.report.answers.answer import Answer, Block, Cell, Column, Command, Notes, Number, Phrase, Row, Section, State, Table
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.values import At
from gpuwise.text import capital
from gpuwise.units import format_measured

TITLES, DOCTOR, BENCH = PARTS["validate"], PARTS["doctor"], PARTS["bench"]
RESOURCES = (
    ("cpus", "processors"),
    ("memory_bytes", "memory"),
    ("shm_bytes", "shared memory, /dev/shm"),
    ("nofile", "open files at most"),
)
"""Of a process on the machine."""


READINESS: Mapping[str, State] = {"ready": "yes", "ready with limits": "maybe", "not ready": "no"}


def doctor_answer(document: Mapping[str, Any]) -> Answer:
    """Findings, worst first, each with its fix."""
    d = At(document)
    findings, notes = list(d["findings"]), list(d["notes"])
    alone = next((n for n in notes if n["id"].value == "no-gpu"), None)
    first = findings[0] if findings else alone
    more = f" ({len(findings)} findings)" if len(findings) > 1 else ""
    then = ["--fix-plan", "fix.sh"] if findings else []
    return Answer(
        "doctor",
        f"{capital(d['verdict'].text)}. {'No fault was found' if first is None else first['what'].text}{more}",
        READINESS[d["verdict"].text],
        capital(d["summary"].text),
        parts=[
            *(_finding("findings", f, named=f is first) for f in findings),
            *(_finding("notes", n) for n in notes),
            Section("machine", DOCTOR["machine"], [_machine(d["machine"])]),
        ],
        next=Command("Write these fixes as a script", ["gpuwise", "doctor", *then])
        if findings
        else Command("How fast this machine is", ["gpuwise", "bench", "--quick"]),
    )


WHERE = {"host": " (on the machine itself)", "windows": " (in PowerShell)"}
"""Places where a fix is not typed here."""


EVIDENCE = 160
"""Letters of evidence in a heading, at most: two lines of a terminal."""


def _finding(name: str, f: At, *, named: bool = False) -> Section:
    """One finding: how to fix it, what was seen, why it matters, and how to check the fix. Its heading is the evidence where the
    verdict has ``named`` it."""
    blocks = list[Block]()
    said = list[Phrase]()
    for fix in f["mends"]:
        what = fix["what"].text + WHERE.get(fix["where"].text, "")
        commands = fix["commands"].value
        if commands:
            blocks.append(Command(what, [("; " if fix["where"].value == "windows" else " && ").join(commands)]))
        else:
            said.append(f"Fix: {what}")
    seen = "; ".join(" ".join(str(e.value).split()) for e in f["evidence"])
    seen = f"Seen: {seen}" if seen else ""
    heading = shorten(seen, EVIDENCE, placeholder=" ..") if named and seen else f["what"].text
    said += [*([seen] if seen and heading != seen else []), f"Why: {f['why'].text}"]
    said += [f"Check: {f['check'].text}"] if f["check"].value else []
    label = f" [{f['severity'].text}: {f['id'].text}]" if name == "findings" else ""
    return Section(name, heading + label, [*blocks, Notes(said)], first=name == "findings")


def _machine(m: At) -> Table:
    resources = m["resources"]
    rows = [Row([Cell("system"), Cell((m["system"]["name"].text, " ", m["system"]["kernel"].text))])]
    rows += [Row([Cell(words), Cell(resources[name])]) for name, words in RESOURCES]
    return Table(DOCTOR["machine"], [Column("what", words=True), Column("value", words=True)], rows)


# --- predictions beside measurements of this machine ---

KINDS = {"tune": "tune: all levers together, from one by one", "run": "run: a whole run, from the tuning or earlier runs"}
QUANTITIES = {
    "allocated_bytes": "peak allocated",
    "reserved_bytes": "peak reserved",
    "process_bytes": "nvidia-smi",
    "step_time_s": "step time",
}


def runs_answer(document: Mapping[str, Any]) -> Answer:
    """Trainings of this machine, predicted beside measured."""
    d = At(document)
    n = sum(int(r["n"].number) for r in d["runs"])
    verdict = f"{n} prediction{'s' if n > 1 else ''} of trainings on this machine, beside what was measured"
    rows = [
        Row(
            [
                Cell(r["on"]),
                Cell(f"{r['kind'].text} {r['job'].text[:8]}", r["basis"].text),
                Cell(r["device"]),
                *(Cell((r[key], f" {r['per'].text}/s")) for key in ("predicted", "measured")),
                Cell(_percent(r["error"])),
            ]
        )
        for r in reversed(list(d["each"]))
    ]
    columns = [Column("on"), Column("script", words=True), Column("device", words=True, leaves=1)]
    columns += [Column("predicted"), Column("measured"), Column("error")]
    return Answer(
        "validate",
        verdict if n else "No prediction of a training was recorded yet",
        lead="samples a second of your own trainings" if n else "gpuwise tune and gpuwise run record theirs",
        parts=[
            *_trainings(d["runs"]),
            *(_part("each", Table(TITLES["each"], columns, rows)) if rows else ()),
        ],
        next=Command("Predict one, run it and record both", ["gpuwise", "run", "train.py"]),
    )


def _trainings(runs: At) -> Iterator[Section]:
    columns = [Column("predicted", words=True), Column("times"), Column("scripts", leaves=1), Column("median error")]
    columns += [Column("bias"), Column("worst")]
    rows = [
        Row([Cell(KINDS.get(r["kind"].text, r["kind"].text)), *_cells(r, "n", "scripts", "median_error", "bias", "worst")])
        for r in runs
    ]
    if rows:
        yield from _part("trainings", Table(TITLES["trainings"], columns, rows))


def local_answer(document: Mapping[str, Any]) -> Answer:
    """Real training steps of this machine, predicted beside measured."""
    d = At(document)
    machine, quantities = d["machine"], [s["quantity"].text for s in d["summary"]]
    rows: list[Row] = []
    missing: list[str] = []
    for case in d["cases"]:
        errors = [_error(case, q) for q in quantities]
        if any(error is not None for error in errors):
            sides = zip(quantities, errors, strict=True)
            cells = ["-" if e is None else (case["measured"][q], f" {100 * e:+.1f} %") for q, e in sides]
            rows.append(Row([Cell(case["case"]), *map(Cell, cells)]))
        else:
            side = "measuring" if case["measured"]["failed"] else "predicting"
            why = case["measured" if side == "measuring" else "predicted"]["failed"]
            missing.append(f"{side} {case['case'].text}: {why.text if why else 'nothing to compare'}")
    shares = ("median_ape", "mape", "p90_ape", "bias")
    summary = [Row([Cell(QUANTITIES[s["quantity"].text]), *_cells(s, "cases", *shares)]) for s in d["summary"]]
    columns = [Column("", words=True), Column("cases"), Column("median error"), Column("MAPE")]
    columns += [Column("90 % within", leaves=1), Column("bias")]
    cases = [Column("case", words=True), *(Column(QUANTITIES[q]) for q in quantities)]
    driver = f", driver {machine['driver'].text}" if machine["driver"].value else ""
    on_cpu = machine["device"].value == "cpu"
    return Answer(
        "validate",
        f"{machine['gpu'].text}: {len(rows)} of {d['asked'].text} cases compared",
        "yes" if rows else "no",
        f"torch {machine['torch'].text}{driver}",
        parts=[
            *(_part("quantities", Table(TITLES["quantities"], columns, summary)) if rows else ()),
            *(_part("cases", Table(TITLES["cases"], cases, rows)) if rows else ()),
            *(_part("left-out", Notes(missing)) if missing else ()),
            *_trainings(d["runs"]),
        ],
        next=Command("Your own trainings", ["gpuwise", "validate", "--runs"]),
        assumed=["No GPU here: the bytes of live storages on the CPU were compared, not time"] if on_cpu else [],
    )


def _part(name: str, block: Table | Notes) -> Iterator[Section]:
    yield Section(name, TITLES[name], [block], first=True)


def _cells(place: At, *names: str) -> list[Cell]:
    """Counts, and errors in percent."""
    return [Cell(place[n] if n in ("n", "scripts", "cases") else _percent(place[n])) for n in names]


def _error(case: At, quantity: str) -> float | None:
    """predicted / measured - 1."""
    predicted, measured = case["predicted"][quantity].number, case["measured"][quantity].number
    return predicted / measured - 1 if predicted and measured else None


def _percent(place: At) -> Number:
    """A share with its sign, where one is worth a sign."""
    sign = "+" if place.name in ("bias", "error") else ""
    return Number(place, lambda share: f"{100 * share:{sign}.1f} %")


def history_answer(document: Mapping[str, Any]) -> Answer:
    """The newest value of each measurement beside what is expected of the device and the middle of all; or how to come by one."""
    d = At(document)
    devices = list(d["devices"])
    measure = Command("Measure again", ["gpuwise", "bench", "--quick"])
    if not devices:
        return Answer("bench", "Nothing was measured here yet", lead="a short list takes a minute or two", next=measure)
    low = sum(m["verdict"].value == "low" for device in devices for m in device["measurements"])
    n = sum(len(device["measurements"].value) for device in devices)
    columns = [Column("measurement", words=True), Column("newest"), Column("expected"), Column("of it", leaves=4)]
    columns += [Column("median", leaves=3), Column("times", leaves=1), Column("on", leaves=2)]
    sections: list[Section] = []
    for device in devices:
        title = f"{device['device'].text}, machine {device['machine_id'].text}"
        rows = [_past(m) for m in device["measurements"]]
        sections.append(Section("results", title, [Table(title, columns, rows)], first=True))
    return Answer(
        "bench",
        f"{n} measurement{'s' if n != 1 else ''} on record, {low or 'none'} of them below what is expected",
        "maybe" if low else "yes",
        parts=sections,
        next=measure,
    )


def _past(m: At) -> Row:
    e, share = m["expected"], m["of_expected"]
    interval: Phrase = (_measured(e["low"], m), " to ", _measured(e["high"], m)) if e else m["reason"].text
    return Row(
        [
            Cell(m["measurement"]),
            Cell("failed" if m["failed"] else _measured(m["newest"], m), m["failed"].text if m["failed"] else ""),
            Cell(_measured(e["expected"], m) if e else "-", interval),
            Cell(share if e and share else "-"),
            Cell(_measured(m["median"], m)),
            Cell(m["count"]),
            Cell(m["on"]),
        ],
        mark="weak" if m["verdict"].value == "low" else "",
    )


def _measured(place: At, row: At) -> Phrase:
    """A value in the unit of its measurement."""
    return "-" if place.value is None else Number(place, lambda value: format_measured(value, row["unit"].text))


def measurements_answer(document: Mapping[str, Any]) -> Answer:
    """What can be measured, by family."""
    every = list(At(document)["measurements"])
    rows = [Row([Cell(m["measurement"]), Cell(_on(m)), Cell("yes" if m["quick"].value else "")]) for m in every]
    columns = [Column("measurement", words=True), Column("on", words=True), Column("with --quick", words=True, leaves=1)]
    families = list(dict.fromkeys(m["family"].text for m in every))
    return Answer(
        "bench",
        f"{len(every)} things can be measured: {', '.join(families)}",
        parts=[Section("measurements", BENCH["measurements"], [Table(BENCH["measurements"], columns, rows)], first=True)],
        next=Command("Measure one family", ["gpuwise", "bench", "--only", families[0]]),
    )


def _on(m: At) -> str:
    return ", ".join({"cuda": "gpu", "cpu": "cpu"}[str(kind.value)] for kind in m["on"])
