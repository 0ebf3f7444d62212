"""Scripts that nobody here wrote, run as they are and under ``gpuwise profile``: do they end the same, and is the verdict right?

    python benchmarks/foreign_scripts.py CHECKOUTS --python PYTHON [--only NAME ...] [--scratch FOLDER] [--record FILE]
    python benchmarks/foreign_scripts.py CHECKOUTS --python PYTHON --under run --levers 'autocast = "bf16"' [...]
    python benchmarks/foreign_scripts.py --table FILE             # counts of a file of results

``CHECKOUTS`` holds ``OWNER/NAME`` of every repository of ``tests/foreign/scripts.toml`` at the commit that stands there;
``PYTHON`` has torch and the libraries. A line of JSON for each script goes to stdout, and to FILE with ``--record``. A script
whose repository or library is missing is reported as such and counts for nothing.

A run is *unmodified* where exit code and the names of the files written are those of the plain run (the code may be 1 where
there is nothing to profile and the command says why); of an endless script where it trains until it is stopped. A verdict is
right where it is one of the script's ``verdict``; a finding is false where it is neither there nor in ``also``. Those are a
person's, from the source of the script and what its lines cost.
"""

from __future__ import annotations

import argparse
import json
import os
import pickletools
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LIST = HERE.parent / "tests" / "foreign" / "scripts.toml"
NOT_WRITTEN = ("__pycache__", ".git", "events.out.tfevents", "gpuwise.toml", ".gpuwise", ".pyc", ".lock")
"""Files that differ between any two runs, or are ours."""
SURROUNDINGS = {"PYTHONDONTWRITEBYTECODE": "1", "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
"""One thread for each: the machine has few, and other programs."""
READY = "ready"
"""A file in a copy that no run has used."""
STOPPED, ENDLESS_S = 124, 20.0
"""The code of a run that was stopped, as the shell's timeout has it; seconds after which an endless script is."""
LOADS = """
import sys
sys.modules["gpuwise"] = None
folder, own, *names = sys.argv[1:]
sys.path[0:0] = [folder, own]
import torch
for name in names:
    try:
        torch.load(f"{folder}/{name}", map_location="cpu", weights_only=False)
    except Exception as error:
        words = str(error).strip().splitlines() or [""]
        print(f"{name}: {type(error).__name__}: {words[-1][:200]}")
"""
SAVED = (".pt", ".pth", ".ckpt", ".bin", ".tar")


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    if options.table is not None:
        rows = [json.loads(line) for line in options.table.read_text("utf-8").splitlines() if line.strip()]
        print(table(list({r["name"]: r for r in rows}.values())))
        return 0
    for script in on_gpu(read_list()) if options.gpu else read_list():
        if options.only and script["name"] not in options.only:
            continue
        row = json.dumps(judged(script, options))
        print(row, flush=True)
        if options.record is not None:
            with options.record.open("a", encoding="utf-8") as file:
                file.write(row + "\n")
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path, nargs="?")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--scratch", type=Path, default=Path("/tmp/gpuwise-foreign"))
    parser.add_argument("--under", choices=("profile", "run"), default="profile")
    parser.add_argument(
        "--levers", nargs="*", default=[], help='NAME=VALUE as TOML has it, for --under run; say cache_items="1GB"'
    )
    parser.add_argument("--record", type=Path)
    parser.add_argument("--limit-s", type=float, default=240.0)
    parser.add_argument("--reuse", action="store_true", help="the plain run of before, where one ended well")
    parser.add_argument("--plain-only", action="store_true")
    parser.add_argument("--verdict-only", action="store_true", help="no plain run, and only as many steps as the profile needs")
    parser.add_argument("--gpu", action="store_true", help="the scripts that have a table for a GPU, by that")
    parser.add_argument("--table", type=Path)
    return parser.parse_args(arguments)


def read_list(path: Path = LIST) -> list[dict[str, Any]]:
    """The scripts, as the file has them."""
    return tomllib.loads(path.read_text("utf-8"))["script"]


def on_gpu(scripts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those that the list has for a GPU too: what their tables ``gpu`` say in place of what is said for a processor."""
    return [{**s, "also": [], **s["gpu"]} for s in scripts if "gpu" in s]


def judged(script: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """One script, run twice and compared."""
    row: dict[str, Any] = {"name": script["name"], "load": round(os.getloadavg()[0])}
    source = (options.checkouts / script["repository"] / script["folder"]).resolve()
    if not source.is_dir():
        return {**row, "missing": script["repository"]}
    missing = _missing(options.python, script.get("needs", ()))
    if missing:
        return {**row, "missing": missing}
    place = (options.scratch / script["name"]).resolve()
    python = str(options.python)
    call = ["-m", script["module"]] if "module" in script else [script["path"]]
    endless = bool(script.get("endless"))
    limit_s = ENDLESS_S if endless else options.limit_s
    plain = _kept(place, endless=endless) if options.reuse else None
    if options.verdict_only:
        plain = {"code": 0, "files": None, "wall_s": 0.0, "folder": place}
    if plain is None:
        shutil.rmtree(place, ignore_errors=True)
        plain = _run(place / "plain", script, source, python, [python, *call, *script["arguments"]], limit_s)
        kept = {**plain, "files": sorted(plain["files"]), "folder": str(plain["folder"])}
        (place / "plain.json").write_text(json.dumps(kept), "utf-8")
    if endless and plain["code"] == STOPPED:
        plain |= {"code": 0, "files": None}
    row |= {"plain_s": round(plain["wall_s"], 1), "code": plain["code"]}
    if plain["code"] or options.plain_only:
        if plain["code"]:
            return {**row, "tail": plain["tail"][-1500:]}
        prepare(place / options.under, script, source, python)
        return row
    command = [python, "-m", "gpuwise", options.under]
    if options.under == "profile":
        command += ["--json", *([] if endless or options.verdict_only else ["--whole"])]
    else:
        config = place / "gpuwise.toml"
        config.write_text(config_text(script["path"], options.levers), "utf-8")
        command += ["--no-record", f"--config={config}"]
    target = ["-m", script["module"]] if "module" in script else [script["path"]]
    watched = _run(
        place / options.under, script, source, python, [*command, *target, "--", *script["arguments"]], 3 * options.limit_s
    )
    row |= {"watched_s": round(watched["wall_s"], 1), "watched_code": watched["code"]}
    if options.verdict_only:
        return row | _verdict(script, watched)
    others = set() if plain["files"] is None else plain["files"] ^ watched["files"]
    row["other_files"] = sorted(others)[:5]
    # without a second step there is no profile, which is an error of the command, not of the script
    told = options.under == "profile" and watched["code"] == 1 and "error: " in watched["tail"]
    row["unmodified"] = (watched["code"] == plain["code"] or told) and not others
    own = Path(script["path"]).parent
    row["unloadable"] = unloadable(python, watched["folder"], watched["files"], own)
    if row["unloadable"] and plain["files"] is not None:
        # a pickle of a class of ``__main__`` loads nowhere else, whoever wrote it
        already = {words.partition(":")[0] for words in unloadable(python, Path(plain["folder"]), plain["files"], own)}
        row["unloadable"] = [words for words in row["unloadable"] if words.partition(":")[0] not in already]
    if options.under == "profile":
        row |= _verdict(script, watched)
    else:
        row |= {"levers": options.levers, "loaded": sum(f.endswith(SAVED) for f in watched["files"])}
        row["otherwise"] = pickled_otherwise(Path(plain["folder"]), watched["folder"], watched["files"])
    return row


def _kept(place: Path, *, endless: bool) -> dict[str, Any] | None:
    """The plain run of before; None where there is none, or it failed."""
    try:
        kept = json.loads((place / "plain.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if kept["code"] and not (endless and kept["code"] == STOPPED):
        return None
    return {**kept, "files": set(kept["files"]), "folder": Path(kept["folder"])}


def config_text(script: str, levers: Iterable[str]) -> str:
    """``gpuwise.toml`` with these levers, each ``NAME = VALUE``."""
    return "\n".join(["version = 1", f'script = "{script}"', "[levers]", *levers, ""])


def _missing(python: str, needs: Iterable[str]) -> str:
    asked = "import importlib.util, sys; print(*(n for n in sys.argv[1:] if importlib.util.find_spec(n) is None))"
    return subprocess.run([python, "-c", asked, *needs], capture_output=True, text=True, check=False).stdout.strip()


def prepare(root: Path, script: Mapping[str, Any], source: Path, python: str) -> tuple[Path, dict[str, str]]:
    """A copy of the script's folder below ``root`` with its data beside it and a home of its own. Returns the folder and the
    environment."""
    home, ready = root / "home", root / READY
    folder = root / script["repository"].split("/")[1] / script["folder"]
    own = dict(script.get("env", {}))
    if "PYTHONPATH" in own:
        # beside the one that decides which gpuwise it is
        own["PYTHONPATH"] = os.pathsep.join(filter(None, (own["PYTHONPATH"], os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, **SURROUNDINGS, "HOME": str(home), **own}
    if ready.exists():
        return folder, environment
    shutil.rmtree(root, ignore_errors=True)
    home.mkdir(parents=True)
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns(".git"))
    for words in script.get("data", ()):
        name, at, *values = words.split()
        place = Path(at.replace("~", str(home))) if at.startswith("~") else folder / at
        place.parent.mkdir(parents=True, exist_ok=True)
        made = [python, str(HERE / "foreign_data.py"), name, str(place.resolve()), *values]
        subprocess.run(made, env=environment, check=True, capture_output=True)
    ready.touch()
    return folder, environment


def _run(
    root: Path, script: Mapping[str, Any], source: Path, python: str, command: Sequence[str], limit_s: float
) -> dict[str, Any]:
    """A run in such a copy, which no other run has used."""
    folder, environment = prepare(root, script, source, python)
    (root / READY).unlink()
    before = _files(folder)
    output, began = root / "output", time.monotonic()
    with output.open("wb") as stdout, (root / "errors").open("wb") as stderr:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=stdout, stderr=stderr, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = STOPPED
        finally:
            end(process)
    said = output.read_text("utf-8", "replace")
    wall_s = time.monotonic() - began
    tail = (root / "errors").read_text("utf-8", "replace")
    return {"code": code, "files": _files(folder) - before, "folder": folder, "wall_s": wall_s, "said": said, "tail": tail}


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill it and what is in its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _files(folder: Path) -> set[str]:
    found = (str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    return {_timeless(f) for f in found if not any(part in f for part in NOT_WRITTEN)}


def _timeless(name: str) -> str:
    """Without the numbers of a date or a process in it."""
    out: list[str] = []
    for part in name.split("/"):
        digits = sum(c.isdigit() for c in part)
        out.append("".join("0" if c.isdigit() else c for c in part) if digits >= 6 else part)
    return "/".join(out)


def unloadable(python: str, folder: Path, files: Iterable[str], own: Path) -> list[str]:
    """Files of weights that do not load in a process that has no gpuwise."""
    names = sorted(f for f in files if f.endswith(SAVED) and (folder / f).exists())
    if not names:
        return []
    call = [python, "-c", LOADS, str(folder), str(folder / own), *names]
    ran = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)
    if ran.returncode:
        return [f"{name}: {ran.stderr.strip().splitlines()[-1][:200]}" for name in names]
    return [line for line in ran.stdout.splitlines() if line.partition(":")[0] in names]


def pickled_otherwise(plain: Path, levered: Path, files: Iterable[str]) -> list[str]:
    """Files of weights whose pickle names gpuwise, or other classes and functions than that of the plain script."""
    return [
        name
        for name in sorted(f for f in files if f.endswith(SAVED))
        if (plain / name).exists() and (levered / name).exists() and _names_in(plain / name) != _names_in(levered / name)
    ]


def _names_in(path: Path) -> set[str]:
    """What a pickle asks for on reading."""
    if not zipfile.is_zipfile(path):
        return set()
    with zipfile.ZipFile(path) as archive:
        pickled = [archive.read(n) for n in archive.namelist() if n.endswith("data.pkl")]
    words = {str(argument) for text in pickled for op, argument, _ in pickletools.genops(text) if op.name == "GLOBAL"}
    return words | {"gpuwise" for text in pickled if b"gpuwise" in text}


def _verdict(script: Mapping[str, Any], watched: Mapping[str, Any]) -> dict[str, Any]:
    lines = watched["said"].rstrip().splitlines()
    try:
        document = json.loads(lines[-1])
        kind, sentence = document["verdict"]["kind"], document["verdict"]["sentence"]
    except (IndexError, ValueError, KeyError, TypeError):
        words = [t for t in watched["tail"].splitlines() if t.startswith(("error:", "hint:"))]
        kind = "told" if words else "none"
        return {
            "verdict": kind,
            "sentence": " ".join(words)[:400] or watched["tail"][-400:],
            "right": kind in script["verdict"],
            "findings": {},
            "false": [],
        }
    findings = {f["kind"]: round(f["share"], 3) for f in document["findings"]}
    allowed = {*script["verdict"], *script.get("also", ())}
    return {
        "verdict": kind,
        "sentence": sentence,
        "right": kind in script["verdict"],
        "findings": findings,
        "false": sorted(set(findings) - allowed),
        "notes": document["notes"],
        "step_s": document["wall_s"],
        "busy": round(document["busy_share"], 3),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Counts, and a line for every script."""
    ran = [r for r in rows if "missing" not in r and not r.get("code")]
    judged_rows = [r for r in ran if "verdict" in r]
    said = [
        f"{len(rows)} scripts; {len(ran)} run here as they are; {len(judged_rows)} judged",
        f"unmodified {sum(bool(r.get('unmodified')) for r in ran)}",
        f"verdict right {sum(bool(r.get('right')) for r in judged_rows)}",
        f"with a false finding {sum(bool(r.get('false')) for r in judged_rows)}",
        f"files that do not load without gpuwise {sum(len(r.get('unloadable', ())) for r in ran)}",
        "",
        "| script | plain s | watched s | unmodified | verdict | right | false findings |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for r in rows:
        if "missing" in r or r.get("code"):
            why = f"missing: {r['missing']}" if "missing" in r else f"plain run ends with {r['code']}"
            said.append(f"| {r['name']} | | | | {why} | | |")
            continue
        cells = [r["name"], r["plain_s"], r.get("watched_s", ""), "yes" if r.get("unmodified") else "no", r.get("verdict", "")]
        cells += ["yes" if r.get("right") else "no", ", ".join(r.get("false", ()))]
        said.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(said)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
