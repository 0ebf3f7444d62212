# pyright: basic
"""The repeated blocks of a module: what is compiled, recomputed, gathered and wrapped one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import nn

from gpuwise.workload.capture.record.blocks import repeated_paths

HOLDERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def blocks_by_path(root: nn.Module) -> dict[str, nn.Module]:
    """The repeated blocks of ``root`` by path, in the order of its modules, as defined by :func:`repeated_paths`."""
    modules = dict(root.named_modules())
    children: dict[str, list[str]] = {path: [] for path in modules}
    for path in modules:
        if path:
            children[path.rpartition(".")[0]].append(path)
    kinds = {
        path: type(m)
        for path, m in modules.items()
        if path and children[path] and type(m) not in HOLDERS and any(True for _ in m.parameters())
    }
    lists = [path for path, m in modules.items() if isinstance(m, (nn.Sequential, nn.ModuleList))]
    shared = shared_parameters(root)
    return {p: modules[p] for p in repeated_paths(children, kinds, lists, lambda path: not holds(modules[path], shared))}


def repeated_blocks(root: nn.Module) -> list[nn.Module]:
    """:func:`blocks_by_path` without the paths."""
    return list(blocks_by_path(root).values())


def largest_kind(blocks: list[nn.Module]) -> list[nn.Module]:
    """Those of ``blocks`` that are of the class with the most parameters: one chain of layers, to be cut or divided alike."""
    numbers: Counter[type] = Counter()
    for block in blocks:
        numbers[type(block)] += sum(p.numel() for p in block.parameters())
    largest = max(numbers, key=lambda kind: numbers[kind], default=None)
    return [b for b in blocks if type(b) is largest]


def kinds_of(blocks: list[nn.Module]) -> str:
    """The classes of ``blocks``, each once: ``EncoderLayer, DecoderLayer``."""
    return ", ".join(dict.fromkeys(type(b).__name__ for b in blocks))


def lists_of(root: nn.Module, blocks: Mapping[str, nn.Module]) -> tuple[str, ...]:
    """Paths of the lists and sequences that hold ``blocks`` of ``root`` and nothing else; none where some stand elsewhere."""
    paths = tuple(dict.fromkeys(path.rpartition(".")[0] for path in blocks))
    found = {id(b) for b in blocks.values()}
    lists = [root.get_submodule(path) for path in paths]
    whole = all(isinstance(m, (nn.Sequential, nn.ModuleList)) and all(id(c) in found for c in m.children()) for m in lists)
    return paths if whole else ()


def shared_parameters(module: nn.Module) -> dict[int, int]:
    """How often each parameter that has several places has one, by identity."""
    places = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    return {p: n for p, n in places.items() if n > 1}


def holds(block: nn.Module, shared: Mapping[int, int]) -> bool:
    """Whether a parameter in ``block`` has a place outside of it too: ``shared`` are those of the whole."""
    inside = Counter(id(p) for _, p in block.named_parameters(remove_duplicate=False))
    return any(shared.get(p, n) > n for p, n in inside.items())


def unshared_blocks(module: nn.Module, blocks: list[nn.Module]) -> list[nn.Module]:
    """Blocks without parameters shared with the outside: those that FSDP2 can gather separately."""
    shared = shared_parameters(module)
    return [b for b in blocks if not holds(b, shared)]
