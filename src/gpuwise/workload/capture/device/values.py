# pyright: basic
"""Values known despite the simulated device, and guesses for the others.

Small tensors from the host or a factory function keep their values, and so do results computed only from them. Unknown truth
values are guessed so that a healthy program continues: nothing is NaN or infinite, ``all`` is true, ``any`` is false.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpuwise.workload.capture.device.laws import INDICES, RULES, UNKNOWN_SHARE, Call, Law, balanced, laws_of

KNOWN_LIMIT = 64
"""Maximum number of elements whose values are stored."""
KNOWN_WHOLE_LIMIT = 4096
"""The same for whole numbers and truth values: sizes, lengths, offsets, masks."""
LARGEST_SUM = 2.0**53
"""Sums above it are no whole numbers any more in 64 bits of floating point."""
COMPUTED = 2
"""Results computed from known values may be this many times larger: differences of 4,096 positions need 4,097."""
_WHOLE = frozenset({torch.int64, torch.int32, torch.int16, torch.int8})
_FACTORIES = frozenset({"full", "zeros", "ones", "scalar_tensor", "arange", "eye", "linspace"})
_RANDOM = torch.Tag.nondeterministic_seeded
_NEVER = frozenset({"isnan", "isinf", "isposinf", "isneginf"})
_TRUTH = _NEVER | frozenset(
    {
        "eq",
        "ne",
        "gt",
        "ge",
        "logical_not",
        "bitwise_not",
        "logical_and",
        "bitwise_and",
        "__and__",
        "mul",
        "logical_or",
        "bitwise_or",
        "__or__",
        "all",
        "any",
        "_is_all_true",
        "_is_any_true",
        "alias",
        "clone",
        "view",
        "_unsafe_view",
        "squeeze",
        "unsqueeze",
        "expand",
        "select",
        "detach",
    }
)


FIRST_GUESS, FALL, APART, LEAST_GUESS = math.log(2.0), 0.95, 0.9997, 1e-12
"""Floating-point numbers read back are taken to be a loss that falls: the loss of a coin first (ln 2), 5 % less each time that
the same line reads one, other numbers on other lines, and constant where every tolerance is reached. So logarithms exist, a
loss improves, and loops that wait for a small number, or a small change of one, end, but not at once. Rule of this project."""
_OURS = str(Path(__file__).resolve().parents[3]) + os.sep
_TORCHS = tuple(
    f"{os.sep}{Path('torch', name)}" for name in ("_tensor.py", "overrides.py", "utils/_python_dispatch.py", "utils/_device.py")
)
"""Sources between the line that reads a number and the guess, with all of gpuwise."""


class Values:
    """Known values and guessed truths by storage key, as long as nothing wrote to the storage."""

    def __init__(self) -> None:
        self._contents: dict[int, tuple[int, Tensor]] = {}
        self._truth: dict[int, bool] = {}
        self._laws: dict[int, tuple[int, Law]] = {}
        self._guessed: set[int] = set()
        self.share: float | None = None
        """Share of true elements of every mask with unknown values, if given."""
        self.in_update = False
        """Whether an optimizer updates."""
        self._n_guesses: dict[tuple[str, int], int] = {}
        """Numbers guessed so far, by the line that reads them."""

    def forget(self, key: int) -> None:
        """Drop the values of a freed storage."""
        self._contents.pop(key, None)
        self._truth.pop(key, None)
        self._laws.pop(key, None)
        self._guessed.discard(key)

    def clear(self) -> None:
        self._contents.clear()
        self._truth.clear()
        self._laws.clear()
        self._guessed.clear()

    def note(self, device_tensor: Tensor, host: Tensor, writes: int = 0, *, guessed: bool = False, times: int = 1) -> None:
        """Record that ``device_tensor`` has the values of the real tensor ``host``, after ``writes`` more counted writes;
        ``guessed``: the values are a guess. Tensors longer than ``times`` the limit are not stored."""
        if host.numel() > times * _limit(host) or host.layout is not torch.strided or device_tensor.storage_offset():
            return
        copy = host.detach().to(device_tensor.dtype, copy=True)
        key = device_tensor.untyped_storage()._cdata
        self._contents[key] = (_version(device_tensor) + writes, copy)
        if guessed:
            self._guessed.add(key)
        else:
            self._guessed.discard(key)

    def of(self, tensor: Tensor) -> Tensor | None:
        """The values of ``tensor``; None if unknown."""
        value = self._contents.get(tensor.untyped_storage()._cdata) if self._contents else None
        if value is None:
            return None
        version, host = value
        if version != _version(tensor):
            return None
        if host.dtype is tensor.dtype and host.shape == tensor.shape:
            return host
        if host.dtype is tensor.dtype and host.is_contiguous():  # a view of known values
            try:
                return torch.as_strided(host, tensor.shape, tensor.stride(), tensor.storage_offset())
            except RuntimeError:
                return None
        return None

    def is_guessed(self, tensor: Tensor) -> bool:
        """Whether the values :meth:`of` gives are a balanced choice."""
        return _key(tensor) in self._guessed

    def guess(self, dtype: torch.dtype) -> Any:
        """The value that a scalar of ``dtype`` read back from the device is taken to have."""
        if dtype is torch.bool:
            return False
        if not dtype.is_floating_point:
            return 0j if dtype.is_complex else 1
        line = _reading_line()
        n = self._n_guesses.get(line, 0)
        self._n_guesses[line] = n + 1
        return max(FIRST_GUESS * APART ** list(self._n_guesses).index(line) * FALL**n, LEAST_GUESS)

    def law(self, value: Any) -> Law:
        """Law of each element."""
        if not isinstance(value, Tensor):
            return Law(float(value)) if isinstance(value, (int, float)) else Law()
        if not value.is_meta or value.layout is not torch.strided:
            contents = value if not value.is_meta and value.layout is torch.strided else None
        else:
            version, law = self._laws.get(_key(value), (0, None))
            contents = self.of(value)
            if value.dtype is torch.bool and contents is None and self.share is not None:
                return Law(self.share)
            if law is not None and version == _version(value):
                return law
            if value.dtype is torch.bool and contents is None:
                truth = self._truth.get(_key(value))
                return Law(UNKNOWN_SHARE if truth is None else float(truth))
        if contents is None or not contents.numel() or contents.is_complex() or contents.numel() > KNOWN_WHOLE_LIMIT:
            return Law()
        return Law(float(contents.double().mean()))

    def _follow_law(self, info: Any, args: Any, kwargs: Any, result: Any) -> None:
        writes = 0
        if info.mutable:
            if result is not args[0] or info.fresh:
                return
            writes = 0 if result.is_inference() else 1
        for tensor, law in laws_of(info.short, Call(args, kwargs, result, self.law)):
            self._laws[_key(tensor)] = (_version(tensor) + writes, law)
            countable = law.mean is not None and not law.n_values and tensor.dtype in _WHOLE and not tensor.storage_offset()
            countable = (
                countable and abs(law.mean or 0.0) * tensor.numel() < LARGEST_SUM
            )  # uninitialised memory may contain anything
            if countable and tensor.is_contiguous() and 0 < tensor.numel() <= KNOWN_WHOLE_LIMIT and law.mean is not None:
                self.note(tensor, balanced(law.mean, tensor.numel()).view(tensor.shape), writes, guessed=True)

    def scalar(self, tensor: Tensor) -> Any:
        """The one value of ``tensor``: known, or guessed from how a truth value came about; None if neither."""
        host = self.of(tensor)
        if host is not None:
            return host.item()
        return self._truth.get(tensor.untyped_storage()._cdata) if tensor.dtype is torch.bool else None

    def follow(self, info: Any, args: Any, kwargs: Any, result: Any, tensors: list[Tensor]) -> None:
        """Update the known values of ``result`` from those of the arguments. ``tensors`` are the device's."""
        name = info.short
        if info.mutable and (self._contents or self._laws):
            self._follow_write(info, args, kwargs, tensors)
        if name in RULES or name in INDICES:
            self._follow_law(info, args, kwargs, result)
        if result.__class__ is not Tensor or result.numel() > COMPUTED * _limit(result):
            if name in _TRUTH and result.__class__ is Tensor and result.dtype is torch.bool:
                self._follow_truth(name, args, result)
            return
        if not tensors:
            if name in _FACTORIES and result.numel() <= _limit(result):
                self.note(result, info.func(*args, **{**kwargs, "device": torch.device("cpu")}))
            return
        if self._contents and not info.mutable and _RANDOM not in info.func.tags and not info.view and not result._is_view():
            input_values = [self.of(t) for t in tensors]
            if all(k is not None for k in input_values):
                real = dict(zip(map(id, tensors), input_values, strict=True))
                host = {k: v for k, v in kwargs.items() if k != "device"}
                try:
                    guessed = any(_key(t) in self._guessed for t in tensors)
                    self.note(result, info.func(*_swap(args, real), **_swap(host, real)), guessed=guessed, times=COMPUTED)
                except (RuntimeError, TypeError, AttributeError, NotImplementedError):
                    return  # a kernel the host lacks: the values stay unknown
                return
        if name in _TRUTH and result.dtype is torch.bool:
            self._follow_truth(name, args, result)

    def _follow_write(self, info: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> None:
        """An in-place operation on tensors with known values: the result is known. Its writes are counted later."""
        target = args[0] if args else None
        targets = target if isinstance(target, (list, tuple)) else [target]
        input_values = [self.of(t) for t in tensors]
        if not targets or any(k is None for k in input_values) or _RANDOM in info.func.tags or info.fresh:
            for t in targets:
                if isinstance(t, Tensor) and t.is_inference():
                    self.forget(_key(t))
            return
        real = {id(t): k.clone() for t, k in zip(tensors, input_values, strict=True) if k is not None}
        try:
            info.func(*_swap(args, real), **_swap(kwargs, real))
        except (RuntimeError, TypeError, AttributeError, NotImplementedError):
            return
        for t in targets:
            if isinstance(t, Tensor) and t.is_meta:
                guessed = any(_key(t) in self._guessed for t in tensors)
                self.note(t, real[id(t)], 0 if t.is_inference() else 1, guessed=guessed)

    def _follow_truth(self, name: str, args: Any, result: Tensor) -> None:
        truth = self._truth_of(name, args)
        if truth is not None:
            self._truth[result.untyped_storage()._cdata] = truth

    def _truth_of(self, name: str, args: Any) -> bool | None:
        first = self._truth.get(_key(args[0])) if isinstance(args[0], Tensor) else None
        second = args[1] if len(args) > 1 else None
        if name in _NEVER:
            return False
        if name in ("eq", "ne"):
            if isinstance(second, Tensor):
                return name == "eq" if _key(second) == _key(args[0]) else None
            return name == "ne" if isinstance(second, float) and not math.isfinite(second) else None
        if name in ("gt", "ge"):  # an optimizer's guard: LBFGS keeps what is above 1e-10
            return True if self.in_update and isinstance(second, float) and second > 0.0 else None
        if name in ("all", "_is_all_true"):
            return True if first is None else first
        if name in ("any", "_is_any_true"):
            return False if first is None else first
        if name in ("logical_not", "bitwise_not"):
            return None if first is None else not first
        if name in ("logical_and", "bitwise_and", "__and__", "mul", "logical_or", "bitwise_or", "__or__"):
            other = self._truth.get(_key(second)) if isinstance(second, Tensor) else second
            both = [t for t in (first, other) if t is not None]
            if not both:
                return None
            return any(both) if "or" in name else all(both)
        return first


def _reading_line() -> tuple[str, int]:
    """File and line of the code that reads a value, a library's too."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if not (name.startswith(_OURS) or name.endswith(_TORCHS)):
            break
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _limit(tensor: Tensor) -> int:
    """Maximum number of elements for which values like these are stored."""
    whole = not tensor.dtype.is_floating_point and not tensor.dtype.is_complex
    return KNOWN_WHOLE_LIMIT if whole else KNOWN_LIMIT


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _swap(value: Any, real: dict[int, Any]) -> Any:
    if isinstance(value, Tensor):
        return real.get(id(value), value)
    if isinstance(value, (list, tuple)):
        return type(value)(_swap(v, real) for v in value)
    if isinstance(value, dict):
        return {k: _swap(v, real) for k, v in value.items()}
    return value


def _version(tensor: Tensor) -> int:
    """Writes counted so far; tensors made in inference mode do not count, they are taken as never written to."""
    return 0 if tensor.is_inference() else tensor._version
