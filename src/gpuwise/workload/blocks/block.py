"""What every kind of block answers: a kind is a class that overrides what it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.facts.models.architecture import Architecture

if TYPE_CHECKING:
    from gpuwise.workload.blocks.rows import Rows


class Block:
    """A kind of block. ``where`` is the first word of its rows' names, and of the norm and the residual around it."""

    where = ""
    own_row = ""
    """A row by which a layer's table shows that it has this block, where selective recompute treats it on its own."""
    repeated: tuple[str, ...] = ()
    """Rows that selective recompute repeats in place of the attention core, in a layer with this block (Megatron-Core
    ``recompute_modules``)."""
    after_norm: tuple[str, ...] = ()
    """Products that read a norm's output."""
    after_activation: tuple[str, ...] = ()
    """Products that read an activation's output."""
    in_one_kernel: tuple[str, ...] = ()
    """Rows that an inference engine runs inside the kernel of another of its rows."""
    one_product: tuple[str, str] | None = None
    """Two rows that an engine runs as one product, of which the first stays with the width of both."""
    beside_in_decode = ""
    """How the names of rows begin that an engine runs beside others while it decodes, so that they take no time."""
    token_launches = 0
    """Kernels of one token in a local program's graph, where nothing is fused but what always is: norm, rows to 8 bits, products,
    what lies between them, cache, residual."""
    divided_as = ""
    """The rule of a layout that reports numbers which tensor ranks do not divide: ``heads``, ``mixer`` or ``ffn``."""

    def parameters(self, arch: Architecture) -> dict[str, int]:
        """Its weights, by the parts of ``LayerParameters``; without the norm before it."""
        raise NotImplementedError

    def products(self, arch: Architecture) -> list[tuple[str, int, int]]:
        """(name, inputs, outputs) of each linear layer that may have an adapter."""
        return []

    def fused_rows(self, rows: Rows, arch: Architecture) -> None:
        """Its rows in the step table, on this rank; the norm before it and the residual are the layer's."""
        raise NotImplementedError

    def cache_elements(self, arch: Architecture, tp: int) -> float:
        """Numbers that a token leaves in the cache of a rank."""
        return 0.0

    def state_bytes(self, arch: Architecture, tp: int) -> float:
        """Bytes of the state of one sequence on a rank, however long the sequence is."""
        return 0.0

    def trained_parts(self, arch: Architecture) -> tuple[int, ...]:
        """Numbers that the tensor ranks of a training divide."""
        return ()

    def served_parts(self, arch: Architecture) -> tuple[int, ...]:
        """The same of the tensor group of an engine."""
        return self.trained_parts(arch)
