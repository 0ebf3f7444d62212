# pyright: basic
"""What a command line names: ``train.py:make_step``, ``package.module:make_step`` or a whole script, ``train.py``. Torch is
imported when it is captured."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwise.arguments import keyed
from gpuwise.errors import GpuwiseError, InputError, NoFakeRuleError, UnknownNameError, nearest_names
from gpuwise.files import check_file, read_bytes
from gpuwise.workload.capture.errors import UserCodeError, last_user_place, require_torch
from gpuwise.workload.capture.whole_script import WholeScript

if TYPE_CHECKING:
    from gpuwise.workload.capture.captured import Capture

DEFAULT_ATTRIBUTE = "make_step"
BATCH_NAMES = ("batch", "batch_size", "bs", "micro_batch", "micro_batch_size", "batchsize")
SEQ_NAMES = ("seq", "seq_len", "sequence_length", "seq_length", "seqlen", "max_length", "block_size", "context_length")
"""Names a ``make_step`` may give its batch and its sequence length, tried in this order."""


@dataclass(frozen=True, slots=True)
class Target:
    """A function, class or module in a person's file or package, and the settings it is called with; or a whole script."""

    text: str
    """The text as typed: ``train.py:make_step``."""
    file: Path | None
    """The file, or None for a dotted module name."""
    module: str
    """Name of the module."""
    attribute: str
    """Empty for a whole script."""
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    """Other keyword arguments (``--set key=value``)."""
    arguments: tuple[str, ...] = ()
    """The script's own command line."""

    @property
    def is_script(self) -> bool:
        """Whether the file is run as ``python train.py`` would, up to its first updates."""
        return not self.attribute

    @property
    def name(self) -> str:
        """Name for headings: ``train.py:make_step``, or ``train.py``."""
        place = self.file.name if self.file is not None else self.module
        return place if self.is_script else f"{place}:{self.attribute}"

    def capture(
        self,
        *,
        batch: int | None = None,
        seq: int | None = None,
        device: str = "cuda",
        capability: tuple[int, int] = (8, 0),
        interventions: Iterable[Any] = (),
        **options: Any,
    ) -> Capture:
        """Load the file afresh and capture its step; ``options`` go to :func:`gpuwise.capture`.

        What the file prints goes to stderr. Raises UserCodeError with the person's own traceback when their code raises,
        InputError or UnknownNameError when it cannot be loaded or called.
        """
        require_torch()
        from gpuwise.workload.capture.api import capture

        if self.is_script:
            _refuse_sizes(batch, seq)
        with contextlib.redirect_stdout(sys.stderr), _path(self.file, self.arguments):
            return _with_place(
                self.name,
                lambda: capture(
                    WholeScript(self.file) if self.is_script and self.file else _Call(self, batch, seq, device),
                    device=device,
                    capability=capability,
                    batch=batch,
                    seq=seq,
                    name=options.pop("name", self.name),
                    interventions=interventions,
                    **options,
                ),
            )


class _Call:
    """Loads the target inside the accelerator and calls it with those of the keywords that it declares."""

    def __init__(self, target: Target, batch: int | None, seq: int | None, device: str) -> None:
        self.target, self.batch, self.seq, self.device = target, batch, seq, device
        self.__name__ = target.attribute
        self.thing: Any = None
        self.own_batch: int | None = None
        """The batch that the function takes by itself, where none is asked for."""

    def prepare(self) -> Any:
        """The function with its keywords, or the thing itself if it is not to be called; loaded afresh."""
        import functools

        from torch import nn

        thing = attribute_of(load(self.target), self.target)
        if thing is None:
            raise InputError(f"{self.target.text} is None", hint="name a function that returns the step")
        if isinstance(thing, nn.Module) or not callable(thing):
            return thing
        self.own_batch = None if _is_module(thing) else _default_batch(thing, self.target)
        return functools.partial(thing, **keywords_for(thing, self.target, self.batch, self.seq, self.device))

    def __call__(self) -> Any:
        import functools

        thing = self.prepare()
        return thing() if isinstance(thing, functools.partial) else thing


def _refuse_sizes(batch: int | None, seq: int | None) -> None:
    """Raises InputError for sizes that a script takes from its own command line."""
    for option, value in (("batch", batch), ("seq", seq)):
        if value is not None:
            raise InputError(
                f"--{option} is for a function, and this is a whole script",
                hint="give the script its own option after --, like train.py -- --batch-size 32, or name a function: "
                "train.py:make_step",
            )


def _with_place(text: str, run: Callable[[], Capture]) -> Capture:
    try:
        return run()
    except NoFakeRuleError as error:
        place = last_user_place(error)
        raise NoFakeRuleError(
            error.operator, f"{place}{': ' if place and error.reason else ''}{error.reason}", hint=error.hint
        ) from None
    except GpuwiseError:
        raise
    except SystemExit as error:
        raise InputError(
            f"{text} ended the program (exit code {error.code})",
            hint="its output shows why; its own arguments come after --; for a function of a file keep "
            "what reads the command line under if __name__ == '__main__':",
        ) from None
    except Exception as error:  # noqa: BLE001 - the step's own, whatever it is
        raise UserCodeError(text, error) from None


def find_target(text: str, settings: Sequence[str] = (), *, arguments: Sequence[str] = (), whole: bool = False) -> Target:
    """Parse ``file.py:name`` or ``package.module:name``; ``settings`` are ``key=value`` texts.

    ``:name`` is optional. Default: ``make_step``, or with ``whole`` the script itself if the file defines no such function (or
    has ``arguments``, its own command line). Raises InputError for a missing file or a malformed text.
    """
    place, colon, attribute = text.rpartition(":")
    named = bool(colon) and "/" not in attribute and not attribute.endswith(".py")
    if not named:
        place, attribute = text, DEFAULT_ATTRIBUTE
    if not place or not all(part.isidentifier() for part in attribute.split(".")):
        raise InputError(f"{text!r} names no function", hint="write file.py:function, for example train.py:make_step")
    parsed = keyed(map(_setting, settings), "--set")
    if place.endswith(".py") or os.sep in place:
        path = Path(place).expanduser()
        if path.is_dir() or (path.is_file() and path.suffix != ".py"):
            what = "a folder" if path.is_dir() else "no Python file"
            raise InputError(f"{place} is {what}", hint="write file.py:function, for example train.py:make_step")
        if not path.exists():
            raise InputError(f"there is no file {place}", hint=_nearby(path))
        check_file(path, hint="write file.py:function, for example train.py:make_step")
        if whole and not named and (arguments or not _defines(path, DEFAULT_ATTRIBUTE)):
            if parsed:
                raise InputError("--set is for functions", hint=f"give the script its own options: {place} -- --batch-size 32")
            return Target(text, path.resolve(), path.stem, "", {}, tuple(arguments))
        _refuse_words(attribute, arguments)
        return Target(text, path.resolve(), path.stem, attribute, parsed)
    if not all(part.isidentifier() for part in place.split(".")):
        raise InputError(
            f"{place!r} is neither a .py file nor a module name", hint="write file.py:function or package.module:function"
        )
    _refuse_words(attribute, arguments)
    return Target(text, None, place, attribute, parsed)


def _refuse_words(function: str, arguments: Sequence[str]) -> None:
    """Raises InputError for a command line given to a function."""
    if arguments:
        raise InputError(
            f"{function} has no command line: {' '.join(arguments)}",
            hint="--set key=value for a function; only a whole script, train.py, takes words after --",
        )


def _defines(file: Path, name: str) -> bool:
    """Whether a file binds ``name`` at its top; a file that cannot be read so is loaded to say why."""
    try:
        body = ast.parse(read_bytes(file)).body
    except (SyntaxError, ValueError):
        return True
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return True
        if isinstance(node, (ast.Import, ast.ImportFrom)) and any((a.asname or a.name) in (name, "*") for a in node.names):
            return True
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return True
    return False


def _nearby(path: Path) -> str:
    folder = path.parent if path.parent.is_dir() else Path()
    near = nearest_names(path.name, [p.name for p in folder.glob("*.py")])
    return "did you mean " + " or ".join(near) + "?" if near else f"looked in {folder.resolve()}"


def _setting(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise InputError(f"{text!r} is not key=value", hint="for example --set width=512")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, {"true": True, "false": False, "none": None}.get(value.lower(), value)


# --- loading ---


@contextlib.contextmanager
def _path(file: Path | None, arguments: Sequence[str] = ()) -> Iterator[None]:
    """``sys.path`` and ``sys.argv`` as Python sets them for a script (or for ``python -m``)."""
    path, argv, modules = list(sys.path), list(sys.argv), set(sys.modules)
    first = str(file.parent) if file is not None else str(Path.cwd())
    sys.path.insert(0, first)
    sys.argv = [str(file) if file is not None else "", *arguments]
    try:
        yield
    finally:
        sys.path[:], sys.argv[:] = path, argv
        for name in set(sys.modules) - modules:
            origin = getattr(sys.modules.get(name), "__file__", None)
            own = name.partition(".")[0] == __name__.partition(".")[0]  # this program's, where the folder is its checkout
            if origin and Path(origin).is_relative_to(first) and "site-packages" not in origin and not own:
                del sys.modules[name]  # the next capture loads the person's own files afresh


def load(target: Target) -> Any:
    """The module of ``target``, run afresh."""
    if target.file is None:
        if target.module in sys.modules and target.module.partition(".")[0] not in sys.builtin_module_names:
            return sys.modules[target.module]
        try:
            return importlib.import_module(target.module)
        except ModuleNotFoundError as error:
            if error.name and target.module.startswith(error.name):
                raise InputError(
                    f"there is no module {error.name}", hint="write file.py:function, or run where Python finds the package"
                ) from None
            raise
    spec = importlib.util.spec_from_file_location(target.module, target.file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[target.module] = module
    spec.loader.exec_module(module)
    return module


def attribute_of(module: Any, target: Target) -> Any:
    """``make_step`` of the module. Raises UnknownNameError with the nearest names it has."""
    thing = module
    for part in target.attribute.split("."):
        if not hasattr(thing, part):
            methods = [n for n, v in vars(thing).items() if not n.startswith("_") and callable(v)]
            near = nearest_names(part, methods)
            has = f"it has {', '.join(methods[:6])}" if methods else "it defines no function"
            hint = (
                "did you mean " + " or ".join(repr(n) for n in near) + "?"
                if near
                else f"{has}; define make_step() that returns the step"
            )
            raise UnknownNameError(f"name in {target.file.name if target.file else target.module}:", part, methods, hint=hint)
        thing = getattr(thing, part)
    return thing


def _default_batch(function: Any, target: Target) -> int | None:
    """The value of the argument that is its batch: as set, or its default."""
    try:
        declared = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    name = next((n for n in BATCH_NAMES if n in declared), None)
    value = None if name is None else target.settings.get(name, declared[name].default)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def keywords_for(function: Any, target: Target, batch: int | None, seq: int | None, device: str) -> dict[str, Any]:
    """Those of batch, seq, device and the settings that ``function`` declares, under the names it uses."""
    try:
        declared = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return dict(target.settings)
    anything = any(p.kind is p.VAR_KEYWORD for p in declared.values())
    keywords: dict[str, Any] = {}
    for what, value, names in (("batch", batch, BATCH_NAMES), ("seq", seq, SEQ_NAMES)):
        name = next((n for n in names if n in declared), what if anything else None)
        if value is None or (name is None and what == "batch" and _is_module(function)):
            continue  # a bare module's batch is that of its inputs
        if name is None:
            raise InputError(
                f"{target.text} takes no {what}",
                hint=f"let it take one: def {target.attribute}({what}): ..., or leave --{what} out",
            )
        keywords[name] = value
    if "device" in declared:
        keywords["device"] = device
    for name, value in target.settings.items():
        if name not in declared and not anything:
            near = nearest_names(name, declared)
            takes = f"it takes {', '.join(declared)}" if declared else "it takes none"
            hint = f"did you mean {' or '.join(repr(n) for n in near)}?" if near else takes
            raise UnknownNameError(f"argument of {target.attribute}:", name, declared, hint=hint)
        keywords[name] = value
    missing = [
        n
        for n, p in declared.items()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and n not in keywords
    ]
    if missing:
        raise InputError(
            f"{target.text} needs {', '.join(missing)}",
            hint=" ".join(_how_to_give(n) for n in missing),
        )
    return keywords


def _is_module(thing: Any) -> bool:
    from torch import nn

    return isinstance(thing, type) and issubclass(thing, nn.Module)


def _how_to_give(name: str) -> str:
    if name in BATCH_NAMES:
        return "--batch 8"
    if name in SEQ_NAMES:
        return "--seq 1024"
    return f"--set {name}=..."
