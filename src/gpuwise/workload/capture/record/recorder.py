# pyright: basic, reportPrivateImportUsage=false, reportAttributeAccessIssue=false
"""Listens to the fake accelerator and writes a :class:`gpuwise.workload.capture.captured.Capture`."""

from __future__ import annotations

import weakref
from array import array
from collections import Counter
from typing import Any

import numpy as np
import torch
from torch.optim import optimizer as torch_optimizer

from gpuwise.workload.capture.captured import Capture, Category, Finding, ModuleCall, OpFlag, Parameter, Settings, StepSpan
from gpuwise.workload.capture.ops.nested import tensors_in
from gpuwise.workload.capture.record import graph
from gpuwise.workload.capture.record.lines import ENGINE, GRADIENT_ROOT, OPTIMIZER, Lines
from gpuwise.workload.capture.record.modules import Modules
from gpuwise.workload.capture.record.settings import settings_now
from gpuwise.workload.capture.record.signatures import Signatures, dtype_name
from gpuwise.workload.capture.record.storages import Storages
from gpuwise.workload.row_codes import Phase

_graph_task = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node
_FORWARD, _RECOMPUTE, _BACKWARD, _OPTIMIZER = (int(p) for p in (Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD, Phase.OPTIMIZER))
_MICRO, _REPLAYED, _REPLAY = int(OpFlag.MICRO), int(OpFlag.REPLAYED), int(OpFlag.REPLAY)
_COLLECTIVES = ("c10d", "_c10d_functional", "c10d_functional", "symm_mem")


class Recorder:
    """An :class:`gpuwise.workload.capture.device.observer.Observer` that keeps everything in columns.

    Use as a context inside the accelerator's; then :meth:`begin_step` and :meth:`end_step` around each step, and
    :meth:`capture` at the end.
    """

    def __init__(self) -> None:
        self.signatures, self.storages, self.modules, self.lines = Signatures(), Storages(), Modules(), Lines()
        self.accelerator: Any = None
        self.op_signature, self.op_phase, self.op_module, self.op_line = (array("q") for _ in range(4))
        self.op_stream, self.op_flags = array("q"), array("q")
        self.op_inputs, self.op_input_end, self.op_outputs, self.op_output_end = (array("q") for _ in range(4))
        self.spans: list[StepSpan] = []
        self.calls: list[list[ModuleCall]] = []
        self.optimizers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self.optimizer_names: dict[str, None] = {}
        self._findings: Counter[tuple[str, str, str, str]] = Counter()
        self._setup_findings: Counter[tuple[str, str, str, str]] = Counter()
        self._begun: tuple[int, int] | None = None
        self._optimizer_depth = 0
        self._create_graph = [False]
        self._after_backward = False
        self._handles: list[Any] = []
        self._engine: Any = None
        self._parameters: dict[str, torch.nn.Parameter] = {}
        self._owner_of: dict[int, int] = {}
        self._visible_by_sums: dict[int, float] = {}
        self._facts: dict[str, Any] = {}
        self.in_step = False

    # --- context ---

    def __enter__(self) -> Recorder:
        self.modules.on_enter, self.modules.on_leave = self._entered, self._exit
        self.modules.watch()
        self._handles = [
            torch_optimizer.register_optimizer_step_pre_hook(self._before_update),
            torch_optimizer.register_optimizer_step_post_hook(self._after_update),
        ]
        self._unwatch_hooks = graph.watch_hooks()
        self._engine = original = torch.autograd.graph._engine_run_backward

        def run(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            return self._run_backward(original, tensors, args, kwargs)

        torch.autograd.graph._engine_run_backward = run
        torch.autograd._engine_run_backward = run
        return self

    def __exit__(self, *_: object) -> None:
        self.modules.unwatch()
        for handle in self._handles:
            handle.remove()
        if self._engine is not None:
            torch.autograd.graph._engine_run_backward = self._engine
            torch.autograd._engine_run_backward = self._engine
            self._unwatch_hooks()
        self._handles, self._engine = [], None

    # --- observer ---

    def operation(self, func: Any, args: Any, kwargs: Any, result: Any, flags: int) -> None:
        """One operation has run."""
        storages = self.storages
        over = self.signatures.overload(func)
        direction = self._direction(args, result) if over.copies else ""
        visible = self._visible(over.name, args, result) if "attention" in over.name else None
        signature = self.signatures.index(func, args, kwargs, result, direction, visible)
        if not self.signatures.all[signature].n_kernels and not direction:
            flags |= _MICRO
        phase, module, line = self._place(args)
        if over.namespace in _COLLECTIVES:
            storages.mark(tensors_in((args, result)), storages.communication)
        self.op_signature.append(signature)
        self.op_phase.append(phase)
        self.op_module.append(module)
        self.op_line.append(line)
        self.op_stream.append(self.accelerator.current_stream if self.accelerator is not None else 0)
        self.op_flags.append(flags)
        self._note_flow(args, kwargs, result)
        if storages.fresh:
            if (direction == "host-to-device" or not _has_device_input(args)) and not module and phase == _FORWARD:
                storages.mark(tensors_in(result), storages.inputs)
            storages.name_fresh(result)

    def _visible(self, name: str, args: Any, result: Any) -> float | None:
        """Share of the scores that a block mask leaves; the backward finds its forward's by the sums of its scores."""
        if "backward" not in name:
            now = self.accelerator.visible if self.accelerator is not None else None
            if now is not None and isinstance(result, (tuple, list)) and len(result) > 1:
                self._visible_by_sums[self.storages.index_of(result[1])] = now
            return now
        if not self._visible_by_sums:
            return None
        visible = (self._visible_by_sums.get(self.storages.index_of(t)) for t in args if isinstance(t, torch.Tensor))
        return next((share for share in visible if share is not None), None)

    def _note_flow(self, args: Any, kwargs: Any, result: Any) -> None:
        """Storages of the tensors that go in and come out."""
        index_of, into = self.storages.index_of, self.op_inputs
        for arg in args:
            if isinstance(arg, torch.Tensor):
                into.append(index_of(arg))
            elif arg.__class__ is list or arg.__class__ is tuple:
                into.extend([index_of(t) for t in arg if isinstance(t, torch.Tensor)])
        for arg in kwargs.values():
            if isinstance(arg, torch.Tensor):
                into.append(index_of(arg))
        self.op_input_end.append(len(into))
        out = self.op_outputs
        if isinstance(result, torch.Tensor):
            out.append(index_of(result))
        else:
            out.extend([index_of(t) for t in tensors_in(result)])
        self.op_output_end.append(len(out))

    def born(self, storage: Any, nbytes: int, host: bool) -> None:
        """A storage was seen for the first time; the operation that made it is the next one."""
        stream = self.accelerator.current_stream if self.accelerator is not None else 0
        self.storages.born(storage._cdata, nbytes, host, len(self.op_signature), self._module_now(), stream)

    def freed(self, key: int, nbytes: int, host: bool) -> None:
        """A storage died after the last operation."""
        self.storages.freed(key, len(self.op_signature) - 1)

    def position(self) -> int:
        """Operations so far."""
        return len(self.op_signature)

    def replayed(self, first: int, end: int) -> None:
        """The operations again. Their storages are those of the graph's own pool: none is born and none dies."""
        columns = (self.op_signature, self.op_phase, self.op_module, self.op_line, self.op_stream)
        begins = _REPLAY
        for i in range(first, end):
            for column in columns:
                column.append(column[i])
            self.op_flags.append(self.op_flags[i] | _REPLAYED | begins)
            begins = 0
            for stores, ends in ((self.op_inputs, self.op_input_end), (self.op_outputs, self.op_output_end)):
                stores.extend(stores[ends[i - 1] if i else 0 : ends[i]])
                ends.append(len(stores))

    def resized(self, key: int, old: int, new: int) -> None:
        """A storage holds ``new`` bytes now."""
        self.storages.resize(key, new, len(self.op_signature) - 1)

    def finding(self, kind: str, message: str, hint: str) -> None:
        """Record a finding with the user's line; counted per step."""
        where = self.lines.here()
        (self._findings if self.in_step else self._setup_findings)[(kind, message, where, hint)] += 1

    def read_back(self) -> list[str]:
        """Lines that have read values that are guesses."""
        return sorted({where for kind, _, where, _ in self._setup_findings + self._findings if kind == "guess" and where})

    # --- where an operation belongs ---

    def _place(self, args: Any) -> tuple[int, int, int]:
        """(phase, module, line) of the operation that has just run."""
        line, kind = self.lines.find()
        if _graph_task() == -1:
            if self._optimizer_depth or kind == OPTIMIZER or (self._after_backward and self._updates(args)):
                return _OPTIMIZER, 0, line
            if kind == GRADIENT_ROOT:
                return _BACKWARD, 0, line
            self.lines.forward(line)
            return _FORWARD, self.modules.current, line
        if self._optimizer_depth or kind == OPTIMIZER:
            return _OPTIMIZER, 0, line
        if torch.is_grad_enabled() and not self._create_graph[-1]:
            if line:
                self.lines.forward(line)
            return _RECOMPUTE, self.modules.current, line
        node = _node()
        if node is None:
            return _BACKWARD, self.modules.current, line
        variable = getattr(node, "variable", None)
        if variable is not None:
            return _BACKWARD, self._owner_of.get(id(variable), 0), line
        sequence = node._sequence_nr()
        return _BACKWARD, self.modules.of_node(sequence), line if kind != ENGINE else self.lines.of_node(sequence)

    def _module_now(self) -> int:
        """The module of a storage being born: that of the running node in a backward, else the running module."""
        if _graph_task() == -1 or (torch.is_grad_enabled() and not self._create_graph[-1]):
            return self.modules.current
        node = _node()
        if node is None:
            return self.modules.current
        variable = getattr(node, "variable", None)
        if variable is not None:
            return self._owner_of.get(id(variable), 0)
        return self.modules.of_node(node._sequence_nr())

    def _updates(self, args: Any) -> bool:
        """Whether an operation after the backward works on parameters or gradients: a person's own optimizer, under no_grad
        or on ``p.data``."""
        if self.modules.current:
            return False
        first = args[0] if args else None
        if isinstance(first, (list, tuple)) and first:
            first = first[0]
        if not isinstance(first, torch.Tensor) or (first.requires_grad and torch.is_grad_enabled()):
            return False
        index = self.storages.index_of(first)
        return index >= 0 and self.storages.category[index] in (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER)

    def _direction(self, args: Any, result: Any) -> str:
        """``host-to-device`` or ``device-to-host`` for a copy that crosses; empty within the device."""
        source = args[1] if len(args) > 1 and isinstance(args[1], torch.Tensor) else args[0]
        target = result if isinstance(result, torch.Tensor) else args[0]
        from_host, to_host = self._on_host(source), self._on_host(target)
        if from_host == to_host:
            return ""
        return "host-to-device" if from_host else "device-to-host"

    def _on_host(self, tensor: torch.Tensor) -> bool:
        if not tensor.is_meta:
            return True
        host = self.storages.host
        return bool(host) and tensor.layout is torch.strided and tensor.untyped_storage()._cdata in host

    # --- modules, backward, optimizer ---

    def _entered(self, index: int, args: Any, kwargs: Any) -> Any:
        if not self.in_step:
            return None
        if len(self.modules.stack) == 2:
            self._after_backward = False
            tensors = [t for t in tensors_in((args, kwargs)) if not t.requires_grad]
            self.storages.mark(tensors, self.storages.inputs)
        return index, len(self.op_signature), self._indices((args, kwargs))

    def _exit(self, token: Any, out: Any) -> None:
        if token is None or not self.in_step:
            return
        index, first, inputs = token
        self.calls[-1].append(ModuleCall(index, first, len(self.op_signature), inputs, self._indices(out)))

    def _indices(self, value: Any) -> tuple[int, ...]:
        index_of = self.storages.index_of
        return tuple(dict.fromkeys(i for t in tensors_in(value) if (i := index_of(t)) >= 0))

    def _run_backward(self, original: Any, tensors: Any, args: Any, kwargs: Any) -> Any:
        create_graph = args[2] if len(args) > 2 else kwargs.get("create_graph", False)
        if _graph_task() == -1:
            self._note_parameters()
            self._note_saved(tensors)
        self._create_graph.append(bool(create_graph))
        begin = len(self.storages.event_op)
        try:
            return original(tensors, *args, **kwargs)
        finally:
            self._create_graph.pop()
            if _graph_task() == -1:
                self.storages.backwards.append((begin, len(self.storages.event_op)))
                self._after_backward = True
                self._note_gradients()

    def _note_saved(self, roots: Any) -> None:
        self.storages.mark(graph.saved_tensors(roots), self.storages.saved)

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._updating(1)
        self.optimizers.setdefault(id(optimizer), optimizer)
        self._note_gradients()

    def _after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        from gpuwise.workload.capture.record.settings import optimizer_name

        self._updating(-1)
        self.optimizer_names[optimizer_name(optimizer)] = None
        self._note_states(optimizer)

    def _updating(self, change: int) -> None:
        self._optimizer_depth = max(0, self._optimizer_depth + change)
        if self.accelerator is not None:
            self.accelerator.values.in_update = self.in_update

    @property
    def in_update(self) -> bool:
        """Whether an optimizer updates."""
        return self._optimizer_depth > 0

    def _note_states(self, optimizer: Any) -> None:
        parameter_ids = {id(p) for p in self._parameters.values()}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in parameter_ids and parameter_ids:
                    self.storages.classify(parameter, Category.OPTIMIZER)
                elif not parameter_ids:
                    self.storages.classify(parameter, Category.PARAMETER)
        for state in optimizer.state.values():
            for tensor in tensors_in(state):
                self.storages.classify(tensor, Category.OPTIMIZER)

    def _note_parameters(self) -> None:
        """Parameters and buffers of every module that lives."""
        copies = self.modules.copies(self._trained()) if self.spans else set[int]()
        self._parameters = {}
        parameter_ids: set[int] = set()
        for path, module in self.modules.walk():
            if id(module) in copies:
                self._note_copy(module)
                continue
            for name, parameter in module._parameters.items():
                if parameter is None or id(parameter) in parameter_ids:
                    continue
                parameter_ids.add(id(parameter))
                self._parameters[f"{path}.{name}" if path else name] = parameter
                index = self.storages.classify(parameter, Category.PARAMETER)
                owner = self.modules.index(module)
                self._owner_of[id(parameter)] = owner
                if index >= 0:
                    self.storages.module[index] = owner
            for buffer in module._buffers.values():
                if buffer is not None:
                    index = self.storages.classify(buffer, Category.BUFFER)
                    if index >= 0:
                        self.storages.module[index] = self.modules.index(module)

    def _trained(self) -> set[int]:
        """``id`` of the parameters that an optimizer updates or that have a gradient."""
        updated = (p for o in self.optimizers.values() for group in o.param_groups for p in group["params"])
        return {*map(id, updated), *(id(p) for p in self._parameters.values() if p.grad is not None)}

    def _note_copy(self, module: torch.nn.Module) -> None:
        """Exclude the modules of a copied model."""
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            index = self.storages.index_of(tensor) if tensor is not None else -1
            if index >= 0:
                self.storages.category[index] = int(Category.BUFFER)

    def _note_gradients(self) -> None:
        for parameter in self._parameters.values():
            if parameter.grad is not None:
                index = self.storages.classify(parameter.grad, Category.GRADIENT)
                if index >= 0:
                    self.storages.module[index] = self._owner_of.get(id(parameter), 0)

    # --- steps ---

    def begin_step(self) -> None:
        """Start a step; earlier operations are set-up, if it is the first."""
        self._note_parameters()
        for optimizer in list(self.optimizers.values()):
            self._note_states(optimizer)
        self._begun = (len(self.op_signature), len(self.storages.event_op))
        self.calls.append([])
        self._findings.clear()
        self._after_backward, self.in_step = False, True

    def end_step(self) -> None:
        """End the step."""
        assert self._begun is not None
        self._note_gradients()
        for optimizer in list(self.optimizers.values()):
            self._note_states(optimizer)
        self.modules.name_all()
        self.spans.append(StepSpan(self._begun[0], len(self.op_signature), self._begun[1], len(self.storages.event_op)))
        self._note_parameters()
        self._begun, self.in_step = None, False
        self._facts = self._model_facts()

    def has_updated(self, since: int) -> bool:
        """Whether parameters were written by operations from number ``since`` on, by an optimizer or by hand."""
        return _OPTIMIZER in self.op_phase[since:]

    def drop_step(self) -> None:
        """Discard everything since :meth:`begin_step`."""
        if self.in_step:
            self.calls.pop()
        self._begun, self.in_step = None, False

    def _model_facts(self) -> dict[str, Any]:
        parameters, by_module = [], Counter()
        for name, p in self._parameters.items():
            shape = tuple(int(n) for n in p.shape)
            parameters.append(Parameter(name, self.storages.index_of(p), shape, dtype_name(p.dtype), bool(p.requires_grad)))
            by_module[name.rpartition(".")[0]] += p.numel() * p.element_size()
        return {
            "parameters": tuple(parameters),
            "parameter_bytes_by_module": dict(by_module),
            "parameter_count": sum(p.numel() for p in self._parameters.values()),
            "trainable_count": sum(p.numel() for p in self._parameters.values() if p.requires_grad),
        }

    def _settings(self, options: dict[str, Any]) -> Settings:
        requests = self.accelerator.regions.requests if self.accelerator is not None else []
        modes = [str(r.get("mode") or "default") for r in requests]
        return settings_now(
            tuple(self.optimizer_names),
            self.signatures.all,
            autocast_dtypes=tuple(self.signatures.autocast),
            grad_scaler=any("._amp_" in s.op for s in self.signatures.all),
            compiled=bool(requests),
            compile_mode=modes[0] if modes else "",
            **options,
        )

    def capture(self, *, name: str = "", batch: int | None = None, **settings: Any) -> Capture:
        """Everything recorded, frozen."""
        columns = {
            n: np.frombuffer(getattr(self, n), dtype=np.int64).copy() if len(getattr(self, n)) else np.zeros(0, np.int64)
            for n in (
                "op_signature",
                "op_phase",
                "op_module",
                "op_line",
                "op_stream",
                "op_flags",
                "op_inputs",
                "op_input_end",
                "op_outputs",
                "op_output_end",
            )
        }
        s = self.storages
        first = self.spans[0].first_op if self.spans else len(self.op_signature)
        calls = sorted(self.calls[-1], key=lambda c: (c.first_op, -c.end_op)) if self.calls else []
        findings = self._setup_findings + self._findings
        return Capture(
            signatures=tuple(self.signatures.all),
            modules=tuple(self.modules.paths),
            module_types=tuple(self.modules.types),
            lines=tuple(self.lines.all),
            **columns,
            storage_bytes=np.array(s.nbytes, np.int64),
            storage_category=s.decide(columns["op_phase"], first),
            storage_op=np.where(np.array(s.op, np.int64) < len(self.op_signature), np.array(s.op, np.int64), -1),
            storage_module=np.array(s.module, np.int64),
            storage_dtype=tuple(s.dtype),
            storage_stream=np.array(s.stream, np.int64),
            event_storage=np.array(s.event_storage, np.int64),
            event_sign=np.array(s.event_sign, np.int8),
            event_op=np.minimum(np.array(s.event_op, np.int64), len(self.op_signature) - 1),
            steps=tuple(self.spans),
            settings=self._settings(settings),
            findings=tuple(Finding(*finding, count) for finding, count in findings.items()),
            host_bytes=s.host_peak,
            batch=batch,
            name=name,
            calls=tuple(calls),
            **self._facts,
        )


def _has_device_input(args: Any) -> bool:
    return any(t.is_meta for t in tensors_in(args))
