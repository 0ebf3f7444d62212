"""Memory of a captured step under ``torch.compile`` (Inductor): fused results are never written, others are recomputed.

The forward and the backward are one graph each. A result that only fused operations read is never written. Among the forward
values that the backward needs, the partitioner saves those read by a library call (a product's input, attention's queries and
keys). It recomputes a fused result if its inputs are saved anyway or take no more bytes (torch ``_functorch/partitioners.py``:
``is_materialized_backwards``, the minimum cut). Products, convolutions and attention are never recomputed. The optimizer is
unchanged.

Not modelled: kernels that Inductor splits, buffers reused within a graph, results that the user's code still references.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuwise.workload.capture.captured import Capture, Category, OpFlag, StepSpan
from gpuwise.workload.capture.record.edit import Editor, lifetimes
from gpuwise.workload.capture.record.families import family_of
from gpuwise.workload.row_codes import Phase

FUSIBLE = ("elementwise", "norm", "softmax", "reduction", "dropout", "copy", "loss")
FORWARD = int(Phase.FORWARD)
LONGEST_CHAIN = 64
"""Fused operations the partitioner makes again in a row before it keeps a result (``ban_recompute_long_fusible_chains``)."""


def compiled_capture(capture: Capture, *, everything: bool) -> Capture:
    """``capture`` with the storages of its compiled part as Inductor allocates them; unchanged if its data flow is unknown.
    ``everything`` compiles forward and backward whole; otherwise the regions the capture marks (all, if it marks none)."""
    if not capture.has_flow:
        return capture
    edit = Editor(capture)
    flow = _Flow.of(capture)
    for span in capture.steps:
        _Graphs(capture, flow, span, everything).apply(edit)
    return edit.build()


@dataclass(frozen=True, slots=True)
class _Flow:
    """Reads and writes of each operation, and the lifetime of each storage."""

    inputs: list[int]
    input_end: list[int]
    outputs: list[int]
    output_end: list[int]
    fusible: list[bool]
    """[signatures]"""
    birth: list[int]
    death: list[int]
    """[S] events; the number of events: never freed."""
    phase: list[int]
    """[N] of each operation."""
    passes: list[bool]
    """[S] whether a storage is a result that comes and goes, not a parameter, a state, a gradient or an input."""
    event_op: list[int]
    sizes: list[int]

    @staticmethod
    def of(capture: Capture) -> _Flow:
        birth, death = lifetimes(capture)
        category = capture.storage_category
        return _Flow(
            capture.op_inputs.tolist(),
            [0, *capture.op_input_end.tolist()],
            capture.op_outputs.tolist(),
            [0, *capture.op_output_end.tolist()],
            [bool(s.n_kernels) and family_of(s) in FUSIBLE for s in capture.signatures],
            birth.tolist(),
            death.tolist(),
            capture.op_phase.tolist(),
            ((category == int(Category.ACTIVATION)) | (category == int(Category.TEMPORARY))).tolist(),
            [*capture.event_op.tolist(), len(capture.op_phase)],
            capture.storage_bytes.tolist(),
        )

    def reads(self, op: int) -> list[int]:
        return [s for s in self.inputs[self.input_end[op] : self.input_end[op + 1]] if s >= 0]

    def writes(self, op: int) -> list[int]:
        return [s for s in self.outputs[self.output_end[op] : self.output_end[op + 1]] if s >= 0]


@dataclass(slots=True)
class _Graphs:
    """The compiled forward and backward of one step."""

    capture: Capture
    flow: _Flow
    span: StepSpan
    everything: bool
    writers: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """Operations that write a storage, in order."""
    readers: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    inside: dict[int, bool] = field(default_factory=dict[int, bool])
    """Operations of the compiled graphs: whether they are fused."""
    saved: set[int] = field(default_factory=set[int])
    """Results of the forward that the backward holds on to."""
    until: dict[int, int] = field(default_factory=dict[int, int])
    """Results of library calls that live longer, for what is made again of them: the last operation that needs them."""

    def apply(self, edit: Editor) -> None:
        self._read()
        dropped = self._partition()
        unwritten: set[int] = set()
        for storage, writers in self.writers.items():
            calls = [op for op in self.readers.get(storage, []) if not self.inside.get(op, False)]
            fused = self._is_passing(storage) and all(self.inside.get(op, False) for op in writers)
            if fused and not calls and storage not in self.saved:
                unwritten.add(storage)
                edit.drop_event(self.flow.birth[storage])
                edit.drop_event(self.flow.death[storage])
            elif fused and storage in dropped:
                self._freed_after(edit, storage, max(op for op in calls if not self._is_backward(op)))
        runs = self._runs(unwritten)
        for storage, readers in self.readers.items():
            if storage in unwritten or storage in dropped or not self._is_passing(storage):
                continue
            last = max(runs.get(op, op) for op in (*readers, self.until.get(storage, -1)))
            if self.flow.event_op[self.flow.death[storage]] < last:
                self._freed_after(edit, storage, last)

    def _is_passing(self, storage: int) -> bool:
        """A result freed by the end of the step."""
        return self._is_result(storage) and self.flow.death[storage] < self.span.end_event

    def _runs(self, unwritten: set[int]) -> dict[int, int]:
        """The operation in whose kernel a fused operation runs: the last of its readers that writes a result."""
        runs: dict[int, int] = {}
        for op in sorted(self.inside, reverse=True):
            writes = self.flow.writes(op)
            if writes and all(s in unwritten for s in writes):
                runs[op] = max((runs.get(r, r) for s in writes for r in self.readers.get(s, [])), default=op)
        return runs

    def _read(self) -> None:
        c, first, end = self.capture, self.span.first_op, self.span.end_op
        compiled = (c.op_flags[first:end] & int(OpFlag.COMPILED)) != 0
        inside = c.op_phase[first:end] != int(Phase.OPTIMIZER)
        if compiled.any() and not self.everything:
            inside &= compiled
        graphs: list[bool] = inside.tolist()
        signatures: list[int] = c.op_signature[first:end].tolist()
        kernels = [s.n_kernels for s in c.signatures]
        for op, within, signature in zip(range(first, end), graphs, signatures, strict=True):
            if within:
                self.inside[op] = self.flow.fusible[signature]
            reads = self.flow.reads(op)
            for s in self.flow.writes(op):
                if kernels[signature] or s not in reads:
                    self.writers.setdefault(s, []).append(op)
            if kernels[signature]:
                for s in reads:
                    self.readers.setdefault(s, []).append(op)

    def _is_result(self, storage: int) -> bool:
        """Made within this step's graphs, and not what the step is for."""
        return self.flow.passes[storage] and self.span.first_event <= self.flow.birth[storage] < self.span.end_event

    def _is_backward(self, op: int) -> bool:
        return self.flow.phase[op] != FORWARD

    def _partition(self) -> set[int]:
        """Fused results of the forward that the backward makes again; fills ``saved`` and ``until``."""
        dropped: set[int] = set()
        order = sorted(self.writers, key=lambda s: self.writers[s][-1])
        for storage in order:
            writers = self.writers[storage]
            if not self._is_result(storage) or self._is_backward(writers[-1]):
                continue
            later = [op for op in self.readers.get(storage, []) if self._is_backward(op)]
            if not later:
                continue
            again = all(self.inside.get(op, False) for op in (*writers, *later))
            made_of = self._made_of(storage, dropped) if again else None
            sizes = self.flow.sizes
            if made_of is None or sum(sizes[s] for s in made_of) > sizes[storage]:
                self.saved.add(storage)
                continue
            dropped.add(storage)
            for s in made_of:
                self.saved.add(s)
                self.until[s] = max(later[-1], self.until.get(s, -1))
        return dropped

    def _made_of(self, storage: int, dropped: set[int]) -> set[int] | None:
        """Results of library calls needed to recompute ``storage``; None if it cannot be recomputed."""
        needed: set[int] = set()
        visited: set[int] = set()
        pending, length = [storage], 0
        while pending:
            s = pending.pop()
            if s in visited:
                continue
            visited.add(s)
            for op in self.writers.get(s, []):
                length += 1
                if length > LONGEST_CHAIN or not self.inside.get(op, False):
                    return None
                for u in self.flow.reads(op):
                    if u == s or u in visited or u in self.saved or not self._is_result(u):
                        continue
                    writers = self.writers.get(u, [])
                    if not writers:
                        return None
                    if all(self.inside.get(w, False) for w in writers):
                        pending.append(u)
                    elif any(self._is_backward(r) for r in self.readers.get(u, [])):
                        continue  # the backward holds it anyway
                    else:
                        needed.add(u)
        return needed

    def _forget(self, edit: Editor, storage: int) -> None:
        edit.drop_event(int(self.flow.birth[storage]))
        edit.drop_event(int(self.flow.death[storage]))

    def _freed_after(self, edit: Editor, storage: int, op: int) -> None:
        death = self.flow.death[storage]
        if death < len(self.capture.event_op):
            edit.drop_event(death)
        edit.freed(storage, op + 1)
