"""A captured step: every operation and every storage of a real PyTorch step, as columns. No torch here.

:mod:`gpuwise.workload.capture` writes it, the allocator simulator, the time model and the planner read it.

Operations (index ``i``) run in program order; memory events (index ``e``) are in the exact order in which storages are
allocated and freed; ``event_op[e]`` is the operation during or after which that happens (outputs of ``i`` are allocated *at*
``i``; a storage freed after ``i`` returns and before ``i + 1`` starts also has ``i``). Repeated data is stored once: an
operation names its :class:`Signature`, its module path and its source line by index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from gpuwise.workload.row_codes import Kind

I64 = NDArray[np.int64]


class Category(IntEnum):
    """Purpose of a storage, from its use over its whole life."""

    PARAMETER = 0
    GRADIENT = 1
    OPTIMIZER = 2
    BUFFER = 3
    INPUT = 4
    ACTIVATION = 5
    """Saved for the backward pass."""
    TEMPORARY = 6
    """Everything else: outputs that nothing saves, gradients of activations, optimizer temporaries."""
    COMMUNICATION = 7
    """Buffers of collectives (all-gathered parameters, buckets)."""
    WORKSPACE = 8
    """Hidden inside kernels (cuBLAS, cuDNN, flash attention): added by ``predict``, never by the capture."""


class OpFlag(IntEnum):
    """Bits of ``Capture.op_flags``."""

    COMPILED = 1
    """Inside a region the user gave to ``torch.compile``."""
    SYNC = 2
    """The host waits for the device here on real hardware (``.item()``, ``nonzero``, a copy to the host)."""
    CHECKPOINTED = 4
    """Inside an activation-checkpointed region (its forward is run again in the backward pass)."""
    MICRO = 8
    """Host-only: no kernel is launched (views, metadata)."""
    REPLAYED = 16
    """Out of a CUDA graph: the host issues it with all others of the graph."""
    REPLAY = 32
    """The first of a replay."""
    ENTRY = 64
    """The first of a compiled region, or of its backward pass."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape, stride (elements) and dtype of one tensor; dtypes are fp64 fp32 fp16 bf16 fp8 i64 i32 i16 i8 u8 bool c64."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Signature:
    """One kind of operation call: equal signatures take equal time on a device.

    ``inputs`` are the tensor arguments in schema order (lists flattened); ``attributes`` the other arguments by their
    schema name (``stride``, ``groups``, ``is_causal``, ``dim`` ...; for a collective ``group_size`` and ``group_ranks``).
    ``flop`` counts 2 per multiply-add by the one counter of the project; bytes are the tensors' own, each storage once.
    """

    op: str
    """Full overload name: ``aten.mm.default``."""
    kind: Kind
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    attributes: tuple[tuple[str, object], ...]
    flop: float
    bytes_read: float
    bytes_written: float
    n_kernels: int
    """Device kernels an eager call launches; 0 for views and host-only operations."""

    def attribute(self, name: str, default: object = None) -> object:
        """The non-tensor argument ``name``, or ``default``."""
        return dict(self.attributes).get(name, default)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a person should know about the step: a sync, a guess, a thing that could not be captured."""

    kind: str
    """``sync``, ``data-dependent``, ``no-fake-rule``, ``guess``, ``host-copy``, ``mixed-device``, ``fast-path`` ..."""
    message: str
    where: str
    """``train.py:31 in step``; empty if no user line is on the stack."""
    hint: str
    count: int = 1
    """How often a steady step meets it."""


@dataclass(frozen=True, slots=True)
class StepSpan:
    """One captured step: half-open ranges of operations and of memory events."""

    first_op: int
    end_op: int
    first_event: int
    end_event: int


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the model (tied ones once), under the first name it has."""

    name: str
    """``layers.3.mlp.up_proj.weight``."""
    storage: int
    """Index of its storage; -1 if it has none on the device."""
    shape: tuple[int, ...]
    dtype: str
    trainable: bool


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of a module's forward in the steady step (a recomputed forward counts separately)."""

    module: int
    """Index into ``Capture.modules``."""
    first_op: int
    end_op: int
    """Half-open range of the operations run inside."""
    inputs: tuple[int, ...]
    """Storages of its tensor arguments."""
    outputs: tuple[int, ...]
    """Storages of the tensors it returned."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of torch and the device when the step ran."""

    torch_version: str
    capability: tuple[int, int]
    """Compute capability that attention and other kernel choices were made for."""
    device_type: str = "cuda"
    matmul_tf32: bool = False
    cudnn_tf32: bool = True
    cudnn_benchmark: bool = False
    deterministic: bool = False
    autocast_dtypes: tuple[str, ...] = ()
    """Formats autocast was entered with, in order of first use."""
    grad_scaler: bool = False
    compiled: bool = False
    """Whether ``torch.compile`` was used anywhere."""
    compile_mode: str = ""
    channels_last: bool = False
    """Convolutions read channels-last inputs."""
    optimizers: tuple[str, ...] = ()
    """Class name and implementation: ``AdamW/foreach``, ``SGD/fused``, ``Adam/for-loop``."""
    world_size: int = 1
    rank: int = 0
    allocator_conf: str = ""
    """PYTORCH_CUDA_ALLOC_CONF / PYTORCH_ALLOC_CONF as set in the environment or by the script."""


@dataclass(frozen=True, slots=True)
class Capture:
    """One step program as captured: set-up (model and optimizer built) and one or more steps, the last one steady."""

    signatures: tuple[Signature, ...]
    modules: tuple[str, ...]
    """Module paths; index 0 is '' (no module). ``layers.3.mlp.up_proj``."""
    module_types: tuple[str, ...]
    """Class name of each entry of ``modules``."""
    lines: tuple[str, ...]
    """User source lines, ``train.py:31 in step``; index 0 is ''."""
    # operations, length N
    op_signature: I64
    op_phase: I64
    """:class:`gpuwise.workload.step.Phase`."""
    op_module: I64
    op_line: I64
    op_stream: I64
    """0 is the default stream."""
    op_flags: I64
    # storages on the device, length S
    storage_bytes: I64
    """Requested bytes (before the allocator rounds)."""
    storage_category: I64
    storage_op: I64
    """Operation that made it, -1 for set-up before any operation."""
    storage_module: I64
    storage_dtype: tuple[str, ...]
    storage_stream: I64
    # memory events, length E
    event_storage: I64
    event_sign: NDArray[np.int8]
    """+1 born, -1 freed."""
    event_op: I64
    """-1 before the first operation."""
    steps: tuple[StepSpan, ...]
    """Steps in order; what comes before ``steps[0].first_op`` is set-up."""
    settings: Settings
    findings: tuple[Finding, ...] = ()
    parameter_count: int = 0
    trainable_count: int = 0
    host_bytes: int = 0
    """Peak of large tensors in host memory (offloaded state, inputs)."""
    batch: int | None = None
    name: str = ""
    """Name for headings: ``train.py:make_step``, ``GPT2LMHeadModel``."""
    by_name: bool = False
    """Of a network that was named: the program that trains it is not known."""
    parameter_bytes_by_module: Mapping[str, int] = field(default_factory=dict[str, int])
    """Bytes of the parameters that each module path owns directly."""
    parameters: tuple[Parameter, ...] = ()
    """In the order of ``named_parameters()``; empty if no module was seen."""
    calls: tuple[ModuleCall, ...] = ()
    """Module calls of the steady step in order of entry; empty where the recorder does not note them."""
    op_inputs: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    """Storages of the tensor arguments of all operations, one after another, as ``Signature.inputs`` (-1: on the host)."""
    op_input_end: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    """[N] end of each operation's part of ``op_inputs``; another length than N means that the data flow is unknown."""
    op_outputs: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    op_output_end: I64 = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def has_flow(self) -> bool:
        """Whether ``op_inputs`` and ``op_outputs`` belong to these operations."""
        return len(self.op_input_end) == len(self.op_output_end) == len(self.op_signature)

    @property
    def steady(self) -> StepSpan:
        """The last captured step: optimizer state exists, so later steps repeat it."""
        return self.steps[-1]

    def live_bytes(self) -> I64:
        """[E] requested bytes not yet freed, after each event."""
        return np.cumsum(self.event_sign.astype(np.int64) * self.storage_bytes[self.event_storage])

    def peak_bytes(self, step: int = -1) -> int:
        """Peak requested bytes within one step: without rounding, workspaces or context."""
        span = self.steps[step]
        live = self.live_bytes()
        before = int(live[span.first_event - 1]) if span.first_event else 0
        inside = live[span.first_event : span.end_event]
        return max(before, int(inside.max()) if inside.size else 0)

    def bytes_by_category(self, event: int) -> dict[Category, int]:
        """Live bytes of each category right after memory event ``event``."""
        window = slice(0, event + 1)
        storage = self.event_storage[window]
        signed = self.event_sign[window].astype(np.int64) * self.storage_bytes[storage]
        sums = np.bincount(self.storage_category[storage], weights=signed, minlength=len(Category))
        return {category: int(sums[category]) for category in Category if sums[category]}

    def flop(self, step: int = -1) -> float:
        """FLOP of one step, recomputation included."""
        span = self.steps[step]
        counts = np.bincount(self.op_signature[span.first_op : span.end_op], minlength=len(self.signatures))
        return float(sum(n * s.flop for n, s in zip(counts.tolist(), self.signatures, strict=True) if n))
