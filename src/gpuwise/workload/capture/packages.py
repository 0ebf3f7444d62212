"""Public model packages (torchvision, timm, transformers), made importable for any installed torch build."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from gpuwise.errors import require


def torchvision() -> Any:
    """The package ``torchvision``; where its binary does not fit this torch, its operators are described by
    shape, so that every model builds and captures.

    Raises MissingExtraError when it is not installed.
    """
    if "torchvision.ops" in sys.modules:
        return sys.modules["torchvision"]
    require("torchvision", "this network")
    spec = importlib.util.find_spec("torchvision")
    assert spec is not None and spec.origin is not None
    with vision_operators(Path(spec.origin).parent):
        return importlib.import_module("torchvision")


@contextmanager
def vision_operators(folder: Path) -> Generator[None]:
    """Around the import of the torchvision in ``folder``: its operators described by shape where its binary does not load."""
    if _binary_loads(folder):
        yield
        return
    from gpuwise.workload.capture import torchvision_ops

    torchvision_ops.describe()
    yield
    torchvision_ops.finish()


def _binary_loads(folder: Path) -> bool:
    binaries = [p for p in folder.glob("_C*") if p.suffix in (".so", ".pyd", ".dylib")]
    if not binaries:
        return False
    try:
        torch.ops.load_library(str(binaries[0]))  # pyright: ignore[reportUnknownMemberType]
    except OSError:
        return False
    return True


def timm() -> Any:
    """The package ``timm``. Raises MissingExtraError when it or torchvision, which it imports, is not installed."""
    require("timm", "this network")
    torchvision()
    with warnings.catch_warnings():  # other uses of torch in it are left to its authors
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module("timm")


def transformers() -> Any:
    """The package ``transformers``. Raises MissingExtraError when it is not installed."""
    require("transformers", "this network")
    if importlib.util.find_spec("torchvision") is not None:  # its image processors import torchvision where it is installed
        torchvision()
    return importlib.import_module("transformers")


def without_caches(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a layer that will run twice, without the keys and values that Transformers keeps for the next token, in
    training too: the second run would add its own to those of the first. Its own checkpointing leaves them out as well."""
    cache = getattr(sys.modules.get("transformers.cache_utils"), "Cache", None)
    if cache is None:
        return args, kwargs

    def dropped(value: Any) -> Any:
        return None if isinstance(value, cache) else value

    return tuple(map(dropped, args)), {name: dropped(value) for name, value in kwargs.items()}
