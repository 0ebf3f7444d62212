"""What the house measures: lines and files by room, the largest folder, import circles, ways to time work, weight.

    python benchmarks/house.py [TREE ...] [--json]           the source, by reading it: nothing of it is run
    python benchmarks/house.py --touched COMMIT ... [--json] files of the package that each commit touches: one that adds a noun
    python benchmarks/house.py --passed-through [--json]     rooms that plan(model) and fit_step(subject) run through
    python benchmarks/house.py --start-up TREE [TREE] [--json]
                                                             CPU of import, --help and plan over bare Python
    python benchmarks/house.py --commands TREE [TREE] [--json]
                                                             CPU seconds of whole commands, minimum of 5 in turns
    python benchmarks/house.py --installed PYTHON            MB of that interpreter's site-packages

A tree is a checkout; several are shown side by side. An import circle is a strongly connected set of modules:
`at import` counts what runs when a module is imported, `with lazy imports` what functions import when they are
called, `with types` what stands under TYPE_CHECKING, too. A pipeline is a module outside the kernels that turns work into
seconds by itself: it imports the times of two or more kernel families directly.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import resource
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LAZY_ON_PURPOSE = "# lazy on purpose"
"""In the line of an import inside a function: it closes a circle and says why beside it."""

FAMILIES = {
    "gemm": ("kernels.gemm", "gemm", "gemm_formats", "gemm_situations", "captured_products"),
    "fp32": ("kernels.gemm.fp32", "fp32"),
    "attention": ("kernels.attention", "attention", "attention_net", "attention_training", "attention_unfused"),
    "experts": ("kernels.experts", "moe"),
    "memory bound": ("kernels.memory_bound", "kernels.memory_bound_ops", "memory_bound", "captured_memory_bound"),
    "convolution": ("kernels.convolution", "kernels.convolution_ops", "convolution", "captured_convolution"),
    "collectives": ("comm", "collectives", "captured_collectives"),
}
"""Where a kernel family's times come from, under ``gpuwise.predict``; the longest prefix that fits counts."""

TIMING_ROOMS = ("predict", "serve", "plan", "pick", "machine", "train", "cli")


@dataclass(frozen=True, slots=True)
class Import:
    target: str
    when: str
    """``import``: as the module is imported; ``lazy``: in a function; ``types``: only type checkers follow it."""


def sources(tree: Path) -> dict[str, Path]:
    """Module name to file."""
    root = tree / "src"
    found: dict[str, Path] = {}
    for path in sorted((root / "gpuwise").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, modules: set[str]) -> Iterator[Import]:
    """What a module imports of gpuwise, without what is lazy on purpose."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()

    def walk(node: ast.AST, when: str) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                for part in child.body:
                    yield from walk(ast.Module([part], []), "types")
                for part in child.orelse:
                    yield from walk(ast.Module([part], []), when)
            elif isinstance(child, ast.Import | ast.ImportFrom):
                if when == "lazy" and LAZY_ON_PURPOSE in lines[child.lineno - 1]:
                    continue
                for name in _targets(child):
                    if name in modules:
                        yield Import(name, when)
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from walk(child, "lazy" if inside and when == "import" else when)

    def _targets(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in modules else node.module

    yield from walk(ast.parse(text), "import")


IMPORT, LAZY, TYPES = ("import",), ("import", "lazy"), ("import", "lazy", "types")


def graph(tree: Path, counted: tuple[str, ...]) -> dict[str, set[str]]:
    """Module to the modules it imports, of the kinds ``counted``."""
    files = sources(tree)
    return {
        name: {i.target for i in imports(path, set(files)) if i.when in counted and i.target != name}
        for name, path in files.items()
    }


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected sets of more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(v: str) -> None:
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in sorted(edges.get(v, ())):
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            at = stack.index(v)
            ring = stack[at:]
            del stack[at:]
            if len(ring) > 1:
                found.append(sorted(ring))

    sys.setrecursionlimit(10_000)
    for v in sorted(edges):
        if v not in index:
            visit(v)
    return sorted(found)


def rooms(tree: Path) -> dict[str, tuple[int, int]]:
    """Files and lines by room; ``(package)`` is what lies beside the rooms."""
    files: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for base, label in (("src/gpuwise", ""), ("tests", "tests/"), ("tools", "tools/"), ("benchmarks", "benchmarks/")):
        for path in (tree / base).rglob("*.py"):
            parts = path.relative_to(tree / base).parts
            room = label.rstrip("/") if label else (parts[0] if len(parts) > 1 else "(package)")
            files[room] += 1
            lines[room] += len(path.read_text(encoding="utf-8").splitlines())
    return {room: (files[room], lines[room]) for room in sorted(files)}


def largest_folders(tree: Path, most: int = 20) -> list[tuple[str, int]]:
    """Folders with more than ``most`` Python files, or the largest one, in src and tests."""
    counts = Counter(p.parent.relative_to(tree).as_posix() for base in ("src", "tests") for p in (tree / base).rglob("*.py"))
    ranked = counts.most_common()
    return [(f, n) for f, n in ranked if n > most] or ranked[:1]


def longest_files(tree: Path) -> list[tuple[str, int]]:
    lengths = [
        (p.relative_to(tree).as_posix(), len(p.read_text(encoding="utf-8").splitlines()))
        for base in ("src", "tests")
        for p in (tree / base).rglob("*.py")
    ]
    return sorted(lengths, key=lambda x: -x[1])[:3]


def family_of(module: str) -> str | None:
    inside = module.removeprefix("gpuwise.predict.")
    fits = [(len(p), f) for f, prefixes in FAMILIES.items() for p in prefixes if inside == p or inside.startswith(p + ".")]
    return max(fits)[1] if inside != module and fits else None


def pipelines(tree: Path) -> list[str]:
    """Modules outside the kernels that import the times of two or more kernel families."""
    found: list[str] = []
    for module, targets in graph(tree, LAZY).items():
        parts = module.split(".")
        if len(parts) < 2 or parts[1] not in TIMING_ROOMS or family_of(module):
            continue
        if module.startswith("gpuwise.predict.kernels"):
            continue
        if len({f for t in targets if (f := family_of(t))}) >= 2:
            found.append(module)
    return found


def side_by_side(edges: dict[str, set[str]]) -> list[list[str]]:
    """Files and folders of one folder that import each other, a folder as what any file in it imports."""
    found: list[list[str]] = []
    folders = {module.rpartition(".")[0] for module in edges} - {""}
    for folder in sorted(folders):
        inner: dict[str, set[str]] = defaultdict(set)
        start = folder + "."
        for module, targets in edges.items():
            if module.startswith(start):
                here = module.removeprefix(start).partition(".")[0]
                beside = {t.removeprefix(start).partition(".")[0] for t in targets if t.startswith(start)}
                inner[here] |= beside - {here}
        found += [[start + name for name in ring] for ring in circles(inner)]
    return found


def counted(tree: Path) -> dict[str, int]:
    """How types and tests are written: the word ``Any``, files that are not checked strictly, own imports inside functions."""
    texts = [p.read_text(encoding="utf-8") for p in (tree / "src" / "gpuwise").rglob("*.py")]
    tests = [p.read_text(encoding="utf-8") for p in (tree / "tests").rglob("*.py")]
    files = sources(tree)
    lazy = sum(i.when == "lazy" for path in files.values() for i in imports(path, set(files)))
    return {
        "Any": sum(len(re.findall(r"\bAny\b", text)) for text in texts),
        "pyright: basic": sum(text.startswith("# pyright: basic") or "\n# pyright: basic" in text for text in texts),
        "own imports in functions": lazy,
        "functions that test": sum(len(re.findall(r"^ *(?:async )?def test_", text, re.MULTILINE)) for text in tests),
    }


def touched(tree: Path, commits: list[str]) -> dict[str, list[str]]:
    """Files of the package that each commit changes, adds or removes, by the commit's subject."""
    answers: dict[str, list[str]] = {}
    for commit in commits:
        asked = ["git", "-C", str(tree), "show", "--format=%s", "--name-only", commit]
        subject, *names = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split("\n")
        answers[f"{commit} {subject}"] = [name for name in names if name.startswith("src/gpuwise/")]
    return answers


def source_document(tree: Path) -> dict[str, Any]:
    by_room = rooms(tree)
    inside = [v for k, v in by_room.items() if k not in ("tests", "tools", "benchmarks")]
    return {
        "files": sum(f for f, _ in inside),
        "lines": sum(n for _, n in inside),
        "rooms": {room: {"files": f, "lines": n} for room, (f, n) in by_room.items()},
        "folders_over_20": dict(largest_folders(tree)),
        "longest_files": dict(longest_files(tree)),
        "circles_at_import": circles(graph(tree, IMPORT)),
        "circles_with_lazy_imports": circles(graph(tree, LAZY)),
        "circles_with_types": circles(graph(tree, TYPES)),
        "circles_side_by_side": side_by_side(graph(tree, LAZY)),
        "counted": counted(tree),
        "pipelines": pipelines(tree),
    }


# --- what runs ---


def passed_through() -> dict[str, Any]:
    """Rooms and modules with at least one executed frame, for two questions asked of the gpuwise that is installed."""
    import gpuwise

    example = Path(__file__).parent.parent / "examples" / "train_gpt.py"
    questions = {
        "plan(model)": lambda: gpuwise.make_plan("llama-3.1-8b", "8xH100-SXM", gpuwise.Wishes(tokens=1e9)),
        "fit_step(subject)": lambda: gpuwise.fit_step(f"{example}:make_step", "RTX 4090", batch=4),
    }
    home = str(Path(gpuwise.__file__).parent) + os.sep
    answers: dict[str, Any] = {}
    for name, ask in questions.items():
        seen: set[str] = set()

        def note(frame: Any, event: str, _: object, seen: set[str] = seen) -> None:
            if event == "call" and frame.f_code.co_name != "<module>" and frame.f_code.co_filename.startswith(home):
                seen.add(frame.f_code.co_filename)

        sys.setprofile(note)
        try:
            ask()
        finally:
            sys.setprofile(None)
        inside = [Path(f.removeprefix(home)) for f in sorted(seen)]
        rooms_seen: dict[str, int] = defaultdict(int)
        for path in inside:
            rooms_seen[path.parts[0] if len(path.parts) > 1 else "(package)"] += 1
        answers[name] = {"modules": len(inside), "rooms": dict(rooms_seen), "folders": len({p.parent for p in inside})}
    return answers


START_UP = {
    "bare Python": "pass",
    "import gpuwise": "import gpuwise",
    "--help": "from gpuwise.cli.app import run; run(['--help'])",
    "plan": "from gpuwise.cli.app import run; run(['plan', 'llama-3.1-8b', '--on', '8xH100-SXM'])",
}


COMMANDS = (
    "fit llama-3.1-8b --on H100-SXM",
    "fit llama-3.1-8b --on 4090",
    "fit llama-3.1-8b --for train --on H100-SXM",
    "fit llama-3.1-8b --for run --on 3060",
    "models --on 3060",
    "op decode llama-3.1-8b --on 4090",
    "plan llama-3.1-8b --on 8xH100-SXM --tokens 15B",
    "plan llama-3.1-8b --tokens 15B",
)
RUN = """
import sys
from gpuwise.cli import main
sys.argv = ["gpuwise", *{words}]
try:
    main()
except SystemExit:
    pass
"""


def cpu_s(code: str, tree: Path) -> float:
    """User and system seconds of one Python that runs ``code`` with the checkout's source."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    env = {**os.environ, "PYTHONPATH": str(tree / "src"), "COLUMNS": "80"}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def start_up(trees: list[Path], rounds: int = 9) -> dict[str, dict[str, float]]:
    """Median CPU seconds over that of bare Python; the trees take turns, so that both see the same machine."""
    samples: dict[tuple[Path, str], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for name, code in START_UP.items():
            for tree in trees:
                samples[tree, name].append(cpu_s(code, tree))
    answers: dict[str, dict[str, float]] = {}
    for tree in trees:
        median = {name: statistics.median(samples[tree, name]) for name in START_UP}
        bare = median["bare Python"]
        answers[str(tree)] = {"bare_python_s": bare, **{name: median[name] / bare for name in START_UP if name != "bare Python"}}
    return answers


def commands(trees: list[Path], rounds: int = 5) -> dict[str, dict[str, float]]:
    """CPU seconds of each command in each tree: the minimum, as other work on the machine only adds to it."""
    found: dict[str, dict[str, float]] = {}
    for command in COMMANDS:
        code = RUN.format(words=command.split())
        samples = [[cpu_s(code, tree) for tree in trees] for _ in range(rounds)]
        found[command] = {str(tree): min(of) for tree, of in zip(trees, zip(*samples, strict=True), strict=True)}
    return found


def installed_mb(python: str) -> dict[str, float]:
    """MB (1e6 bytes) on disk of an environment's packages, without pip and setuptools; byte code counted."""
    asked = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True, capture_output=True, text=True
    )
    place = Path(asked.stdout.strip())
    sizes: Counter[str] = Counter()
    for path in place.rglob("*"):
        if path.is_file() and not path.is_symlink():
            sizes[path.relative_to(place).parts[0]] += path.stat().st_blocks * 512
    kept = {k: v / 1e6 for k, v in sizes.items() if not k.startswith(("pip", "setuptools", "_distutils_hack", "pkg_resources"))}
    top = dict(sorted(kept.items(), key=lambda x: -x[1])[:8])
    return {"all": sum(kept.values()), **top}


def show(documents: dict[str, dict[str, Any]]) -> None:
    """Tables of Markdown, a column for each tree."""
    names = list(documents)

    def row(label: str, cells: list[str]) -> None:
        print(f"| {label} | " + " | ".join(cells) + " |")

    row("", names)
    print("|---|" + "---:|" * len(names))
    row("files, lines", [f"{d['files']:,}, {d['lines']:,}" for d in documents.values()])
    for room in sorted({r for d in documents.values() for r in d["rooms"]}):
        cells = [d["rooms"].get(room) for d in documents.values()]
        row(room, ["-" if c is None else f"{c['files']:,}, {c['lines']:,}" for c in cells])
    row(
        "folders over 20 files (or the largest)",
        ["; ".join(f"{f} {n}" for f, n in d["folders_over_20"].items()) for d in documents.values()],
    )
    row("longest files", ["; ".join(f"{f} {n}" for f, n in d["longest_files"].items()) for d in documents.values()])
    for what in ("circles_at_import", "circles_with_lazy_imports", "circles_with_types", "circles_side_by_side", "pipelines"):
        row(what.replace("_", " "), [str(len(d[what])) for d in documents.values()])
    for what in next(iter(documents.values()))["counted"]:
        row(what, [f"{d['counted'][what]:,}" for d in documents.values()])
    for name, d in documents.items():
        print(f"\n{name}:")
        for ring in d["circles_with_types"] + d["circles_side_by_side"]:
            print(f"- circle: {', '.join(ring)}")
        for module in d["pipelines"]:
            print(f"- pipeline: {module}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("trees", nargs="*", type=Path)
    parser.add_argument("--touched", metavar="COMMIT", nargs="+")
    parser.add_argument("--passed-through", action="store_true")
    parser.add_argument("--start-up", action="store_true")
    parser.add_argument("--commands", action="store_true")
    parser.add_argument("--installed", metavar="PYTHON")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    trees = given.trees or [Path(__file__).parent.parent]
    document: Any
    if given.touched:
        document = {name: len(files) for name, files in touched(trees[0], given.touched).items()}
    elif given.passed_through:
        document = passed_through()
    elif given.start_up:
        document = start_up(trees)
    elif given.commands:
        document = commands(trees)
    elif given.installed:
        document = installed_mb(given.installed)
    else:
        document = {str(tree): source_document(tree) for tree in trees}
        if not given.json:
            show(document)
            return
    print(json.dumps(document, indent=None if given.json else 1))


if __name__ == "__main__":
    main()
