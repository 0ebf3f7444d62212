"""What the whole package promises.

Public names, what an import costs, who imports whom, a source on every fact, no number from a corrupt file.
"""

from __future__ import annotations

import ast
import doctest
import hashlib
import inspect
import io
import json
import re
import shutil
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist

import pytest

import gpuwise
from gpuwise.cli.app import COMMANDS
from gpuwise.errors import EXTRAS, DataError, FieldError
from gpuwise.interval import BAND, INTERVAL, P80, Z80
from gpuwise.predict import coefficients

PACKAGE = Path(gpuwise.__file__).parent
ROOT = PACKAGE.parent.parent
COEFFICIENTS = PACKAGE / "predict" / "coefficients"


# --- public names ---

PUBLIC = {
    "Accelerator",
    "Architecture",
    "Cluster",
    "Estimate",
    "Fit",
    "Plan",
    "StepFit",
    "StepPlan",
    "Strategy",
    "TrainingEstimate",
    "Wishes",
    "__version__",
    "Asked",
    "ask",
    "capacity",
    "compare",
    "cost",
    "capture",
    "estimate",
    "find_accelerator",
    "find_cluster",
    "find_model",
    "fit",
    "fit_step",
    "make_capacity",
    "make_fit",
    "make_plan",
    "pick",
    "plan",
    "plan_step",
    "profile",
    "validate",
    "watch",
}


def test_public_names_are_exactly_these() -> None:
    assert set(gpuwise.__all__) == PUBLIC
    assert len(gpuwise.__all__) == len(set(gpuwise.__all__))


def test_public_names_exist_and_are_documented() -> None:
    for name in gpuwise.__all__:
        thing = getattr(gpuwise, name)
        assert not callable(thing) or (thing.__doc__ or "").strip(), f"{name} has no docstring"
    assert set(gpuwise.__all__) <= set(dir(gpuwise))


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = gpuwise.no_such_name  # type: ignore[attr-defined]


# --- what an import costs ---

HEAVY = ("numpy", "pandas", "scipy", "pydantic", "fastapi", "textual", "torch", "pynvml", "pyarrow")
LOADED = "\nimport sys; print('\\n'.join(sys.modules))"


def _modules_after(code: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", code + LOADED], capture_output=True, text=True, check=True, timeout=300)
    return set(done.stdout.split("\n"))


def _heavy(modules: set[str]) -> set[str]:
    return {m for m in modules if m.split(".")[0] in HEAVY}


def test_import_loads_nothing_heavy_and_little_at_all() -> None:
    bare, loaded = _modules_after(""), _modules_after("import gpuwise")
    assert _heavy(loaded) == set()
    assert len(loaded - bare) <= 40, f"import gpuwise loads {sorted(loaded - bare)}"


@pytest.mark.parametrize("arguments", ["--help", "--version", "plan --help", "fit --help"])
def test_help_loads_nothing_heavy(arguments: str) -> None:
    code = f"from gpuwise.cli.app import run; run({arguments.split()!r})"
    assert _heavy(_modules_after(code)) == set()


# --- the package as a command and in Python ---


def test_the_version_is_that_of_the_distribution() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"] == gpuwise.__version__


def test_the_package_runs_as_a_module(tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gpuwise", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300)

    assert run("--version").stdout.strip() == gpuwise.__version__
    assert "run it, adapt it" in run("--help").stdout
    refused = run("gpus", "no-such-gpu")
    assert refused.returncode == 2 and refused.stderr.startswith("error: ") and "hint: " in refused.stderr


def test_the_example_of_the_package_runs() -> None:
    result = doctest.testmod(gpuwise)
    assert result.attempted >= 3 and result.failed == 0


# --- what an install brings ---


def _requirements() -> dict[str, list[str]]:
    """Names of the required packages by extra, the core's under "", without versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = {"": project["dependencies"], **project["optional-dependencies"]}
    return {extra: [re.split(r"[<>=~! ]", line)[0] for line in lines] for extra, lines in listed.items()}


def test_the_core_is_small() -> None:
    core = {"numpy", "cyclopts", "rich", "msgspec", "platformdirs", "nvidia-ml-py", "psutil", "textual"}
    assert set(_requirements()[""]) == core


def test_a_wheel_holds_the_package_and_nothing_else() -> None:
    """No list of exclusions: what is not for users is outside ``src/gpuwise``."""
    wheel = pytest.importorskip("hatchling.builders.wheel").WheelBuilder(str(ROOT))
    packed = {file.distribution_path for file in wheel.recurse_included_files()}
    there = {p.relative_to(PACKAGE.parent).as_posix() for p in PACKAGE.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert packed == there and "gpuwise/facts/data/sources.csv" in packed


def test_the_package_imports_nothing_of_the_checkout() -> None:
    outside = {"studies", "tests", "tools", "benchmarks"}
    assert [f"{p}: {m}" for p in _sources() for m in _imports(p) if m.split(".")[0] in outside] == []


def test_every_optional_library_is_in_the_extra_its_hint_names() -> None:
    extras = _requirements()
    for library, extra in EXTRAS.items():
        assert library in extras[extra], f"{library} is not in the extra {extra}"
    assert "gpuwise[parquet,torch,prices,ui,mcp]" in extras["all"]


def test_every_extra_is_on_the_page_about_installing() -> None:
    page = (ROOT / "docs" / "start" / "install.md").read_text()
    missing = [extra for extra in _requirements() if extra and f"| `{extra}` |" not in page]
    assert not missing


# --- rooms ---


def _sources() -> Iterator[Path]:
    return (p for p in sorted(PACKAGE.rglob("*.py")))


@cache
def _layers() -> dict[str, int]:
    """Module prefix to its floor, 0 at the ground, as pyproject.toml draws it."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    drawn = next(c for c in contracts if c["type"] == "layers")["layers"]
    floors: dict[str, int] = {}
    for height, line in enumerate(reversed(drawn)):
        floors |= {name.strip(): height for name in line.split("|")}
    return floors


@cache
def _modules() -> dict[str, Path]:
    """Every module of the package by name."""
    return {".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): p for p in _sources()}


@cache
def _imports(path: Path) -> tuple[str, ...]:
    """Every module a file imports: inside functions and by a string too."""
    return tuple(_imported(ast.parse(path.read_text())))


def _imported(tree: ast.Module) -> Iterator[str]:
    elsewhere = {id(constant) for node in ast.walk(tree) for constant in _not_imported(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"relative import of {node.module}"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in elsewhere:
            module = node.value.partition(":")[0]
            if module in _modules() and module != "gpuwise":
                yield module
        elif isinstance(node, ast.BinOp | ast.JoinedStr) and id(node) not in elsewhere:
            parts = node.values if isinstance(node, ast.JoinedStr) else [node.left]
            texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            if any(re.fullmatch(r"gpuwise\.[\w.]*", text) for text in texts):
                yield f"a name put together in line {node.lineno}"


def _not_imported(node: ast.AST) -> Iterator[ast.expr]:
    """Names of modules that run in another process (after ``-m``), whose folder is asked for, or that are looked up."""
    if isinstance(node, ast.List | ast.Tuple):
        after = (b for a, b in pairwise(node.elts) if isinstance(a, ast.Constant) and a.value == "-m")
        yield from (part for b in after for part in ast.walk(b) if isinstance(part, ast.expr))
    elif isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in ("files", "get", "startswith"):
            yield from node.args


def test_imports_by_a_string_are_seen() -> None:
    def seen(code: str) -> list[str]:
        return list(_imported(ast.parse(code)))

    assert seen('import_module("gpuwise.report.page")') == ["gpuwise.report.page"]
    assert seen('TABLE = {"ui": "gpuwise.ui.command:ui"}') == ["gpuwise.ui.command"]
    assert seen("def f():\n    from gpuwise.report import page") == ["gpuwise.report", "gpuwise.report.page"]
    assert seen('import_module("gpuwise.lab." + name)') == ["a name put together in line 1"]
    assert seen('run([python, "-m", "gpuwise.ui.worker"]); files("gpuwise.ui")') == []


def _floor(module: str) -> int | None:
    return next((h for name, h in _layers().items() if module == name or module.startswith(name + ".")), None)


def test_every_room_is_drawn() -> None:
    rooms = {p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists()}
    modules = {"dtypes", "files", "processes", "text", "units", "errors", "interval", "shown", "version"}
    assert rooms == {name.split(".")[1] for name in _layers()} - modules


def test_rooms_import_only_rooms_above_them() -> None:
    wrong = []
    for path in _sources():
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        here = _floor(module)
        if here is None:  # the package itself shows everything
            continue
        wrong += [f"{module} imports {m}" for m in _imports(path) if (there := _floor(m)) is not None and there > here]
        wrong += [f"{module}: {m}" for m in _imports(path) if m.startswith("a name put together")]
    # the table of commands names where `gpuwise ui` and `gpuwise mcp` live, whose workers run commands
    assert wrong == ["gpuwise.cli.app imports gpuwise.ui.command", "gpuwise.cli.app imports gpuwise.ui.mcp.command"]


def test_no_framework_in_the_core() -> None:
    banned = {"torch", "pandas", "pydantic", "sklearn", "lightgbm"}
    real = ("workload/capture/", "machine/bench/", "/train/")  # the rooms that run the real thing
    found = [
        f"{p.name}: {m}"
        for p in _sources()
        for m in _imports(p)
        if m.split(".")[0] in banned and not (m.startswith("torch") and any(r in p.as_posix() for r in real))
    ]
    assert found == []


def _circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Sets of modules that reach each other."""

    def reached(module: str) -> set[str]:
        seen, waiting = set[str](), [module]
        while waiting:
            new = edges[waiting.pop()] - seen
            seen |= new
            waiting += new
        return seen

    whole = {module: reached(module) for module in edges}
    rings = {frozenset(b for b in whole[a] if a in whole[b]) for a in edges if a in whole[a]}
    return sorted(map(set, rings), key=min)


@cache
def _edges() -> dict[str, set[str]]:
    """Module to the modules it imports. Imports inside functions and those that only type checkers read are counted too."""
    edges: dict[str, set[str]] = {}
    for name, path in _modules().items():
        targets = {m for m in _imports(path) if m in _modules() and m != name}
        # `from a.b import c` names a.b and a.b.c: where a.b.c is a module, it is that which is meant
        meant = {m for m in targets if not any(t.startswith(m + ".") for t in targets)}
        edges[name] = {m for m in meant if not name.startswith(m + ".")} - {"gpuwise"}
    return edges


def test_no_import_circle() -> None:
    assert _circles(_edges()) == []


CIRCLES: dict[str, list[set[str]]] = {
    "gpuwise": [{"cli", "ui"}],
}
"""Folders and files side by side that still import each other, by the folder they are in. The list may only become shorter."""


def _circles_in(folder: str) -> list[set[str]]:
    """Sets of files and folders of ``folder`` that import each other: a folder imports what a file in it does."""
    edges: dict[str, set[str]] = {}
    for module, targets in _edges().items():
        if module.startswith(folder + "."):
            here = module[len(folder) + 1 :].partition(".")[0]
            inside = (t[len(folder) + 1 :].partition(".")[0] for t in targets if t.startswith(folder + "."))
            edges.setdefault(here, set()).update(t for t in inside if t != here)
    return _circles({**{t: set() for targets in edges.values() for t in targets}, **edges})


def test_files_and_folders_side_by_side_import_one_way() -> None:
    folders = [name for name, path in _modules().items() if path.name == "__init__.py"]
    found = {folder: circles for folder in folders if (circles := _circles_in(folder))}
    assert found == CIRCLES, "a new circle, or one that is gone and still listed"


def test_circles_are_found() -> None:
    assert _circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"e"}}) == [{"a", "b", "c"}, {"e"}]


def _rooms_drawn() -> str:
    return (ROOT / "CONTRIBUTING.md").read_text().split("## Rooms", 1)[1].split("\n## ", 1)[0]


def test_contributing_names_every_room() -> None:
    drawn = re.findall(r"[a-z_]+", _rooms_drawn())
    folders = {p.parent.name for p in PACKAGE.rglob("__init__.py")} - {"gpuwise"}
    assert sorted(folders - set(drawn)) == []


def test_files_that_contributing_names_exist() -> None:
    named = re.findall(r"`((?:src|tests|docs|benchmarks|tools)/[\w/.-]+)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert named and [name for name in named if not (ROOT / name).exists()] == []


# --- coefficients ---

FAMILIES = sorted(p.stem for p in COEFFICIENTS.rglob("*.json") if p.name != "MANIFEST.json")
STORED = sorted(p.name for p in COEFFICIENTS.rglob("*") if p.suffix in (".json", ".npz") and p.name != "MANIFEST.json")


def test_the_manifest_lists_every_coefficient_file() -> None:
    manifest = json.loads((COEFFICIENTS / "MANIFEST.json").read_text())
    assert manifest == {n: hashlib.sha256(coefficients.coefficient_path(n).read_bytes()).hexdigest() for n in STORED}


@pytest.mark.parametrize("family", FAMILIES)
def test_coefficients_say_where_they_come_from(family: str) -> None:
    provenance = coefficients.load_json(family)["provenance"]
    assert provenance and isinstance(provenance, dict)
    assert "starting point" not in json.dumps(provenance), f"{family} was never fitted"


@pytest.mark.parametrize("name", STORED)
def test_a_corrupt_coefficient_file_gives_no_number(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = coefficients.load_json if name.endswith(".json") else coefficients.load_arrays
    raw = coefficients.coefficient_path(name).read_bytes()
    real = coefficients._raw
    for at in (0, len(raw) // 3, len(raw) - 1):
        damaged = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        monkeypatch.setattr(coefficients, "_raw", lambda n, d=damaged: d if n == name else real(n))
        read.cache_clear()
        with pytest.raises(DataError, match=re.escape(name)):
            read(name.split(".")[0])
    read.cache_clear()


# --- corrupt files, from the outside ---

PLAN = ["plan", "llama-3.1-8b", "--on", "8xH100-SXM", "--tokens", "1B", "--json"]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package to damage."""
    place = tmp_path_factory.mktemp("copy")
    shutil.copytree(PACKAGE, place / "gpuwise", ignore=shutil.ignore_patterns("__pycache__"))
    return place


@pytest.mark.parametrize(
    "file", ["predict/coefficients/kernels/gemm.json", "predict/coefficients/step/stacks.json", "facts/data/offers/offers.csv"]
)
def test_one_flipped_digit_stops_a_plan(copied: Path, file: str) -> None:
    """A digit turned into another digit leaves a file that still parses; no price or time may come of it."""
    path = copied / "gpuwise" / file
    raw = path.read_bytes()
    at = next(m.start() for m in re.finditer(rb"(?<=[,.:])[0-9]", raw[len(raw) // 2 :])) + len(raw) // 2
    path.write_bytes(raw[:at] + (b"7" if raw[at : at + 1] != b"7" else b"8") + raw[at + 1 :])
    try:
        code = f"import sys; sys.path.insert(0, {str(copied)!r})\n"
        code += f"from gpuwise.cli.app import run\nsys.exit(run({PLAN}))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    finally:
        path.write_bytes(raw)
    assert done.returncode == 1 and set(json.loads(done.stdout)) == {"error", "hint"}
    assert done.stderr.startswith("error: ") and "hint: " in done.stderr and "Traceback" not in done.stderr
    assert path.name in done.stderr


@pytest.mark.parametrize("cell", ["nan", "inf", "-2.5", "0", "", "2,5", "2.5 USD"])
def test_a_bad_price_gives_no_number(cell: str) -> None:
    from gpuwise.facts.loading import shipped_text
    from gpuwise.facts.offers.offer import parse_offers

    lines = [line for line in shipped_text("offers.csv").split("\n") if line and not line.startswith("#")]
    cells = lines[1].split(",")
    cells[lines[0].split(",").index("on_demand_usd_h")] = cell
    with pytest.raises(FieldError) as caught:
        parse_offers("\n".join([lines[0], ",".join(cells)]), "offers.csv")
    assert caught.value.line == 2 and caught.value.hint


# --- a stack is asked for its facts, not for its name ---

MAY_NAME_STACKS = {
    "calibrate/": "fits a stack's costs from runs of that software",
    "plan/defaults.py": "the rule that picks the usual stack of a job returns it",
}
"""Folders and files outside ``workload/stacks`` that may compare with a stack's name, and why."""


def _asked_by_name(file: Path, stacks: set[str]) -> Iterator[str]:
    """Places where a stack's name is compared with, is a key or is in a collection of names."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            about = any(re.search(r"stack", ast.unparse(side)) for side in sides)
            found = {c.value for side in sides for c in ast.walk(side) if isinstance(c, ast.Constant)} & stacks
            if about and found:
                yield f"{file.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("startswith", "endswith"):
            if "stack" in ast.unparse(node.func.value):
                yield f"{file.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Dict | ast.Set | ast.Tuple | ast.List):
            items = node.keys if isinstance(node, ast.Dict) else node.elts
            found = {c.value for c in items if isinstance(c, ast.Constant)} & stacks
            if found and found - {"eager", "compiled", "trainer", "deepspeed", "composer", "trl"}:  # words of other things too
                yield f"{file.relative_to(PACKAGE)}:{node.lineno}: {', '.join(sorted(map(str, found)))}"


def test_no_file_asks_for_a_stack_by_name() -> None:
    from gpuwise.workload.strategy import STACKS

    asked = [
        place
        for file in sorted(PACKAGE.rglob("*.py"))
        if not file.relative_to(PACKAGE).as_posix().startswith(("workload/stacks/", *MAY_NAME_STACKS))
        for place in _asked_by_name(file, set(STACKS))
    ]
    assert asked == []


# --- a kind of block is asked, not its dimensions ---

MAY_READ_DIMENSIONS = {
    "workload/blocks/": "describes the kinds",
    "calibrate/": "measures and fits kinds by their sizes",
    "export/": "writes them as options, or names what a tool lacks",
    "serve/iteration_kernels.py": "an engine decodes latent attention in kernels of its own",
    "serve/simulate/front.py": "host times were measured by kind",
}
"""Where the dimensions of mixers and of latent attention may be read outside ``workload/blocks``, and why."""


def test_dimensions_of_a_kind_are_read_by_its_block() -> None:
    from gpuwise.facts.models.architecture import LETTERS, WITHOUT_PATTERN

    parts = {letter.part for letter in LETTERS.values()} - {"", *WITHOUT_PATTERN} | {"mla"}
    read: set[str] = set()
    for file in PACKAGE.rglob("*.py"):
        place = file.relative_to(PACKAGE).as_posix()
        tree = ast.parse(file.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.Attribute) and node.attr in parts for node in ast.walk(tree)):
            read.add(place)
    assert sorted(place for place in read if not place.startswith(tuple(MAY_READ_DIMENSIONS))) == []
    assert [prefix for prefix in MAY_READ_DIMENSIONS if not any(place.startswith(prefix) for place in read)] == []


# --- a source on every fact ---


def test_every_fact_has_a_source() -> None:
    from gpuwise.facts.hardware.accelerators import accelerators, architectures
    from gpuwise.facts.hardware.systems import link_generations, networks, systems
    from gpuwise.facts.models.catalogue import models
    from gpuwise.facts.offers.offer import offers
    from gpuwise.facts.sources import sources
    from gpuwise.workload.optimizer import RULES
    from gpuwise.workload.stacks.stack import find_stack, stacks

    rooms = (
        accelerators(),
        architectures(),
        systems(),
        networks(),
        link_generations(),
        models(),
        stacks(),
        RULES,
    )
    missing = [f"{type(row).__name__} {key}" for rows in rooms for key, row in rows.items() if not row.source.strip()]
    missing += [f"memory rules {name}" for name in stacks() if not find_stack(name).memory.source.strip()]
    missing += [f"{o.provider} {o.instance}" for o in offers() if o.source_key not in sources()]
    missing += [s.key for s in sources().values() if s.kind not in ("rule", "measured", "estimate") and not s.url]
    assert missing == []


def test_the_catalogues_are_as_large_as_promised() -> None:
    from gpuwise.facts.hardware.accelerators import accelerators
    from gpuwise.facts.hardware.systems import systems
    from gpuwise.facts.models.catalogue import models
    from gpuwise.facts.offers.offer import offers

    assert len(accelerators()) >= 150 and len(models()) >= 80 and len(systems()) >= 30
    assert all(o.as_of.year >= 2024 for o in offers())


def test_interval_is_written_once() -> None:
    """Its share, its quantile and the words for it stand in one file: code and texts move together."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name == "interval.py":
            continue
        tree = ast.parse(path.read_text())
        docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and id(node) not in docs:
                text = isinstance(node.value, str) and re.search(r"(?<![\d.])80 %", node.value)
                number = isinstance(node.value, float) and abs(node.value - Z80) < 1e-2
                assert not text and not number, f"{path}:{node.lineno}: use gpuwise.interval"
    assert NormalDist().cdf(Z80) - NormalDist().cdf(-Z80) == pytest.approx(INTERVAL)
    assert BAND[2] - BAND[0] == pytest.approx(INTERVAL) and f"{100 * INTERVAL:.0f} %" == P80


def test_commands_import_no_commands() -> None:
    """What two commands need is beside them or in its own room. ``step`` is what fit and plan do with own code."""
    commands = {name.replace("-", "_") for name, *_ in COMMANDS}
    wrong: list[str] = []
    for path in sorted((PACKAGE / "cli").rglob("*.py")):
        here = path.relative_to(PACKAGE / "cli").parts[0].removesuffix(".py")
        there = {m.split(".")[2] for m in _imports(path) if m.startswith("gpuwise.cli.")}
        wrong += [f"{here}: {name}" for name in sorted(there & commands - {here}) if here in {*commands, "step"}]
    assert wrong == []


# --- plain words ---

DIALECT = re.compile(
    r"\b(mend(s|ed)?|told|tells?|said|nobody|gives? out|at ease|counts none|none that|stands? on|of those that|one's own)\b"
    r"|(?<!there )\b(is|are) no (?!longer\b)",
    re.IGNORECASE,
)
"""Words that a reader from the field does not expect: fix, reported, default, has no, does not and is not are plain."""


def _help_texts() -> Iterator[tuple[str, str]]:
    from gpuwise.cli.app import build, every_command

    app = build()
    for name, command in every_command(app):
        yield f"gpuwise {name}", f"{command.help}\n{(inspect.getdoc(command.default_command) or '').partition('Parameters')[0]}"
        for argument in command.assemble_argument_collection(default_parameter=app.default_parameter, parse_docstring=True):
            default = argument.parameter.show_default
            yield (
                f"gpuwise {name} {argument.name}",
                f"{argument.parameter.help or ''} {default if isinstance(default, str) else ''}",
            )


def _error_texts() -> Iterator[tuple[str, str]]:
    """The constant parts of what errors are made from, and of hints."""
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if not DIALECT.search(re.sub(r'""".*?"""', "", source, flags=re.DOTALL)):
            continue  # most files: parsing all of them takes seconds
        for call in ast.walk(ast.parse(source)):
            if not isinstance(call, ast.Call):
                continue
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            hints = [k.value for k in call.keywords if k.arg == "hint"]
            for part in [*call.args, *hints] if name.endswith("Error") or name in ("refuse", "error") else hints:
                for node in ast.walk(part):
                    if isinstance(node, ast.Constant) and isinstance(node.value, str):
                        yield f"{path.relative_to(PACKAGE)}:{node.lineno}", node.value


def _page_texts() -> Iterator[tuple[str, str]]:
    for page in ("README.md", "CONTRIBUTING.md"):
        text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
        yield from ((page, paragraph) for paragraph in text.split("\n\n"))


@pytest.mark.parametrize("texts", [_help_texts, _error_texts, _page_texts], ids=["help", "errors", "pages"])
def test_what_a_user_meets_first_is_in_plain_words(texts: Callable[[], Iterator[tuple[str, str]]]) -> None:
    read = list(texts())
    assert len(read) > 20
    found = [f"{where}: {match[0].strip()!r} in {text[:200]!r}" for where, text in read for match in DIALECT.finditer(text)]
    assert found == []


NEVER = re.compile(
    r"\b(gives? out|mend(s|ed)?(?!`)|nobody|somebody|told(?!`)|one's own|of those that|counts none|none that|stands? on|makers of"
    r"|networks of convolutions|experts' exchange|lets? go|hears|at the (least|most)|as good as)\b"
    r"|what lies outside torch|(?<!there )(?<!if )\bis none(?! of)\b(?! is)"
)
"""Words that are never right in a docstring or comment of the package; the field has a term for each."""


def test_docstrings_and_comments_are_in_plain_words() -> None:
    found: list[str] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if not NEVER.search(" ".join(source.split())):
            continue  # most files: reading the tokens of all of them takes seconds
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            alone = token.type == tokenize.STRING and token.string.startswith('"""') and not token.line[: token.start[1]].strip()
            if alone or token.type == tokenize.COMMENT:
                text = " ".join(token.string.split())
                found += [f"{path.relative_to(PACKAGE)}:{token.start[0]}: {match[0]!r}" for match in NEVER.finditer(text)]
    assert found == []
