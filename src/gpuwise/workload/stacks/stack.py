"""Software stacks: what runs and is fused, and with it the rules of memory and layout. What a launch or an overlap costs is
fitted in ``predict``.

A stack is one TOML file beside this one. The facts of :class:`Stack` are at its top; ``[memory]``, ``[layout]``, ``[instead]``
and ``[export]`` are sections. ``like``, at the top and in a section, names the stack whose facts stand where none are written.

The facts are of the newest release. Each ``[[release]]`` that changed them has its ``version``, ``date``, ``source``, ``what`` it
changed, and in ``before`` the facts until then. ``torchtune@0.2`` is the stack at a version, ``torchtune@2023`` at the end of a
year.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from gpuwise.errors import DataError, InputError, UnknownNameError
from gpuwise.workload.stacks.layout import LayoutRules
from gpuwise.workload.stacks.memory import MemoryRules
from gpuwise.workload.strategy import STACK_FILES, STACKS

FUSED_SINCE = 2023
"""Year from which stacks fuse attention: PyTorch 2.0's scaled_dot_product_attention and torch.compile (March 2023,
pytorch.org/blog/pytorch-2.0-release); FlashAttention (arXiv 2205.14135) in Megatron-LM (--use-flash-attn, January 2023)."""
HIDDEN_EXPERTS_SINCE = 2025
"""Year from which stacks send one copy of a token to each node (DeepEP, open since February 2025), hide that behind another
micro-batch (Megatron-Core 0.14 --overlap-moe-expert-parallel-comm) and launch attention and router as a graph
(--cuda-graph-modules)."""


@dataclass(frozen=True, slots=True)
class Instead:
    """The stacks that take the place of one, by reason."""

    asked: tuple[str, ...] = ()
    """Stacks to use instead if it lacks a requested option: the first that has it."""
    before_fused: str = "eager-fsdp"
    """In the years before :data:`FUSED_SINCE`."""
    before_fused_why: str = "PyTorch before torch.compile"
    compiled: str = "compiled-fsdp"
    """Under ``torch.compile``."""
    own_script: str = ""
    """Stack for a model created by the user's own script, if that keeps gathered weights longer."""


@dataclass(frozen=True, slots=True)
class Exported:
    """Information that export tools need to start a plan of a stack."""

    tool: str = ""
    """The tool of ``gpuwise.export`` that a plan is timed for; empty: none of them."""
    tool_with_adapters: str = ""
    """The tool under adapters, where it is another."""
    torch_compile: bool = False
    """Hugging Face's and Lightning's options turn ``torch.compile`` on."""
    shards_by_deepspeed: bool = False
    """In Hugging Face's tools sharded states are DeepSpeed's, not FSDP's."""
    unsloth: bool = False
    """LLaMA-Factory runs it by ``use_unsloth``."""


@dataclass(frozen=True, slots=True)
class Stack:
    """The kernels a training stack runs, as facts read from its source or documentation (``source``)."""

    name: str
    source: str
    fused_norm: bool
    """One kernel per norm; otherwise the eager chain (cast, square, mean, rsqrt, scale ...)."""
    fused_rope: bool
    fused_activation: bool
    """Activation, gate product and bias in one kernel."""
    fused_bias_dropout_add: bool
    """Bias, dropout and residual in one kernel."""
    fused_softmax: bool
    """Scale, mask and softmax in one kernel when attention itself is not fused."""
    fused_wgrad: bool
    """Weight gradients accumulate into fp32 in the GEMM epilogue."""
    fused_loss: bool
    """Cross-entropy reads half-precision logits once; otherwise logits are cast to fp32 and passed over several times."""
    fused_optimizer: bool
    """One multi-tensor kernel; otherwise ``foreach`` passes with temporaries."""
    dropout: bool
    """Hidden and attention dropout are on (Megatron's and GPT-2's default 0.1), regardless of the model's configuration."""
    layout_copies: int
    """Extra copies of the attention's q, k, v or output tensors made by transposes, per layer forward."""
    selective_recompute: str
    """Meaning of ``selective``: ``core-attention`` (Korthikanti, arXiv 2205.05198) or ``per-op`` (every second matmul output
    saved; ``per-op-compiled`` where a compiler drops the last one, which nothing reads) or ``norms`` (latent attention's
    up-projections, every norm and the experts' activation, whose input is saved in 8 bits: arXiv 2412.19437)."""
    attention_kernel: str
    """Implementation of fused attention: ``flash`` (the best of the device's family: what Transformer Engine picks) or
    ``fa2`` (torch SDPA and flash-attn 2, on every family)."""
    weight_cast_per_micro_batch: bool
    """Weights are cast from fp32 in every forward (autocast without a half-precision copy)."""
    attention_capability: float = 0.0
    """Compute capability from which its attention is fused; 0: on every device that PyTorch runs on, whose memory-efficient
    kernel is for older ones too."""
    dropout_of_model: bool = False
    """Dropout is on where the model's configuration has it (:attr:`Architecture.dropout`)."""
    keeps_output: bool = True
    """The training loop references the model's output, its logits, until the backward ends (``outputs = model(..)``);
    otherwise they are freed after the forward."""
    without_logits: bool = False
    """Its loss never holds all logits, unasked."""
    chunked_loss_option: str = ""
    """The option of the stack's tool by which its loss is without whole logits, where it is not so already (``fused_loss``)."""
    fuses_attention: bool = True
    """It has a fused attention kernel; otherwise scores are written out, scaled, masked and normalised (``fused_softmax``)."""
    torch_of_norms: str = ""
    """The version of torch whose kernels normalise rows; empty: today's."""
    recipes: bool = False
    """It is run by recipes that its authors wrote and timed, to fine-tune on one host."""
    in_scripts: bool = False
    """People run it in scripts of their own, in many versions: what they publish of memory spreads more than one step's would."""
    half_weights: bool = False
    """Full fine-tuning holds weights, gradients and states in the compute format, without fp32 copies."""
    half_gradients: bool = False
    """By default, gradients of fp16 weights are accumulated in fp16 (DeepSpeed's runtime/fp16)."""
    native_gqa: bool = True
    """Attention reads grouped keys and values as they are; otherwise they are repeated to every query head first."""
    regathers_input: bool = True
    """A column-parallel linear keeps its sequence shard and gathers it again in the backward; otherwise it keeps all."""
    residual_in_kernel: bool = False
    """The sum of a residual's gradients is part of the kernel before it (a compiler)."""
    quantized_keeps_input: bool = False
    """A frozen 4-bit linear keeps its input in fp32."""
    checkpoints: bool = False
    """Layers are recomputed by default."""
    checkpoints_quantized: bool = False
    """Layers over frozen 4-bit weights are recomputed by default (PEFT ``prepare_model_for_kbit_training``)."""
    quantized_fp32_norms: bool = False
    """Beside frozen 4-bit weights the norms' are in fp32, and so is what they give: a 4-bit linear returns the format of its
    input, so the residual stream is in fp32 from the first layer on."""
    masks_padding: bool = False
    """An encoder's scores get the mask of padded tokens added."""
    masks_windows: bool = False
    """A window is a mask of every pair of tokens, which SDPA keeps; keys and values are then repeated to every head."""
    keeps_expert_outputs: bool = False
    """The experts' results are saved for the gradient of the routing weights."""
    expert_streams: bool = False
    """Each expert's product is a launch of the matmul library, on streams side by side (Transformer Engine GroupedLinear);
    otherwise one grouped kernel."""
    loops_experts: bool = False
    """The experts are modules that a Python loop calls one after another, each with its own tokens picked out and added back."""
    trains_prediction: bool = False
    """A model's multi-token-prediction blocks are trained with it, behind the last layer."""
    per_op: bool = False
    """Plain PyTorch: every operation of the modules is a separate row (``transformer.eager``), without a fit of the whole."""
    one_program: bool = False
    """The whole step is one compiled program, which the host starts once: nothing waits for a launch, a hook or another host
    (XLA)."""
    program_slowdown: float = 1.0
    """Time of the kernels of such a program over what the device does at best: what its compiler loses."""
    attention_slowdown: float = 1.0
    """The same of its attention kernel, beyond that."""
    default_on: tuple[str, ...] = ()
    """Vendors, in small letters, whose devices are trained with it unless another is named."""
    compiled: bool = False
    """With ``per_op``: forward and backward through ``torch.compile``."""
    fused_cast: bool = True
    """One kernel casts a product's input to 8 bits in both layouts; otherwise its largest value is found first, and each
    layout is a separate pass."""
    gathers_quantized: str = ""
    """Tensor-parallel gathers that travel in the products' 8- or 4-bit format: ``all``, ``inputs`` (not the gradients of
    outputs) or none. With a scale per row everything travels in the compute format."""
    fsdp_gathers_fp8: bool = False
    """Sharded parameters are cast to 8 bits before they are gathered (one scale per tensor)."""
    recompute_regathers: bool = True
    """The backward of a fully recomputed layer gathers a column-parallel input again beside the recomputed gather."""
    bucket_elements: float = 0.0
    """Elements per communication bucket of gradients (and gathered parameters); 0: all at once."""
    bucket_elements_per_rank: float = 0.0
    """Elements per bucket and data-parallel rank, if that is larger."""
    hides_reduction: bool = True
    """Replicated gradients are reduced while the last backward still runs."""
    shards_by_layer: bool = False
    """ZeRO-1 and 2 are FSDP that keeps gathered parameters (``reshard_after_forward=False``): a layer a message, no buckets."""
    offloads_parameters: bool = False
    """Its offload of the optimizer is FSDP's: sharded parameters and gradients are on the host as well, and a layer's go up for
    each of its passes."""
    accumulates_on_host: bool = False
    """With an offloaded optimizer, gradients of micro-batches are accumulated on the host: the sum is copied to the device and
    back."""
    blocks_on_copies: bool = False
    """Weights in host memory are not pinned: their copies go at the rate of pageable memory, and the host waits for each."""
    leaves_for_rollouts: bool = False
    """Its programs of reinforcement learning move the training's states to host memory whenever an engine generates on the same
    GPUs."""
    loops_over_parameters: bool = False
    """In fp32 the optimizer's update is a Python loop of small operations on one parameter after another."""
    fused_since: int = FUSED_SINCE
    """Year from which its attention is fused."""
    own_exchange: bool = False
    """Whether it overlapped its expert all-to-all before :data:`HIDDEN_EXPERTS_SINCE`."""
    hides_sharded_states: bool = True
    """The same with sharded optimizer states, whose parameters are also gathered while the next forward runs."""
    like: str = ""
    """Stack whose facts and fitted costs it uses where it has none of its own."""
    memory: MemoryRules = field(kw_only=True, compare=False)
    layout: LayoutRules = field(kw_only=True, compare=False)
    instead: Instead = field(kw_only=True, compare=False)
    export: Exported = field(kw_only=True, compare=False)

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def chunks_loss(self) -> bool:
        """Whether its loss can be without whole logits, as it comes or by an option."""
        return self.fused_loss or self.without_logits or bool(self.chunked_loss_option)

    def with_chunked_loss(self) -> Stack:
        """The stack under its option for a loss in chunks, Liger's, which fuses norms, rotary embeddings and activations as well
        (transformers ``use_liger_kernel``); itself where it has no such option, or is described operation by operation."""
        if not self.chunked_loss_option or self.per_op:
            return self
        return replace(self, fused_norm=True, fused_rope=True, fused_activation=True)

    def loops(self, precision: str) -> bool:
        """Whether the update of a step in ``precision`` is a Python loop over the parameters."""
        return self.loops_over_parameters and precision in ("fp32", "tf32")


_VERSION = re.compile(r"\d{1,6}(\.\d{1,6})*")
_YEAR = re.compile(r"20\d\d")
_SECTIONS: dict[str, Callable[..., Any]] = {
    "memory": MemoryRules,
    "layout": LayoutRules,
    "instead": Instead,
    "export": Exported,
}


@dataclass(frozen=True, slots=True)
class Release:
    """A release that changed a stack's facts."""

    version: str
    date: datetime.date
    source: str
    """Source of these facts."""
    what: str
    """The difference, in words."""
    before: dict[str, Any]
    """Facts until then, of the top and of sections."""

    def is_in(self, when: str) -> bool:
        """Whether a version, or the end of a year, has it."""
        if _YEAR.fullmatch(when):
            return self.date.year <= int(when)
        return _numbers(self.version) <= _numbers(when)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def in_year(name: str, year: int | None) -> str:
    """The stack called ``name`` as it was in ``year`` (None: today): its own name where no release has changed it since."""
    if year is None or "@" in name:
        return name
    when = str(year)
    return name if all(release.is_in(when) for release in releases(name)) else f"{name}@{when}"


def with_whole_logits(name: str) -> str:
    """The stack called ``name``, or its last release whose loss held whole logits."""
    plain, _, when = name.partition("@")
    for release in releases(plain):
        loss = {"without_logits"} & release.before.keys() or {"loss_half"} & release.before.get("memory", {}).keys()
        if loss and (not when or release.is_in(when)):
            *first, last = _numbers(release.version)
            return f"{plain}@{'.'.join(map(str, (*first, last - 1)))}"
    return name


def releases(name: str) -> tuple[Release, ...]:
    """Releases in the file of the stack called ``name``, the newest first. Raises as :func:`find_stack`."""
    return _file(name)[1]


def _file(name: str) -> tuple[dict[str, Any], tuple[Release, ...]]:
    if name not in STACKS:
        raise UnknownNameError("stack", name, STACKS)
    facts = tomllib.loads(STACK_FILES[name].read_text(encoding="utf-8"))
    try:
        found = tuple(Release(**row) for row in facts.pop("release", ()))
    except TypeError as error:
        raise DataError(f"{name}.toml: [[release]] {error}") from None
    return facts, tuple(sorted(found, key=lambda release: release.date, reverse=True))


@cache
def find_stack(name: str) -> Stack:
    """The stack called ``name``, or ``name@version``, ``name@year``. Raises UnknownNameError with the nearest names, InputError
    for what is no version, DataError when its file is malformed."""
    plain, dated, when = name.partition("@")
    read, changed = _file(plain)
    facts = dict(read)
    if dated:
        if not _VERSION.fullmatch(when):
            raise InputError(f"{name!r} names no release", hint=f"write a version or a year: {plain}@2024")
        for release in (r for r in changed if not r.is_in(when)):
            for key, value in release.before.items():
                facts[key] = {**facts.get(key, {}), **value} if key in _SECTIONS else value
    sections = {section: _section(name, section, facts.pop(section, {})) for section in _SECTIONS}
    try:
        facts["default_on"] = tuple(facts.get("default_on", ()))
        if like := facts.get("like"):
            return replace(find_stack(like), name=name, **facts, **sections)
        return Stack(name=name, **facts, **sections)
    except TypeError as error:
        raise DataError(f"{name}.toml: {error}") from None


def _section(name: str, section: str, table: dict[str, Any]) -> Any:
    """One section of a stack's file as its type."""
    several: Callable[..., Any] = frozenset if section == "layout" else tuple
    facts: dict[str, Any] = {key: several(value) if isinstance(value, list) else value for key, value in table.items()}
    if "with_adapters" in facts:
        facts["with_adapters"] = _section(name, section, facts["with_adapters"])
    like = facts.pop("like", None)
    try:
        return replace(getattr(find_stack(like), section), **facts) if like else _SECTIONS[section](**facts)
    except TypeError as error:
        raise DataError(f"{name}.toml: [{section}] {error}") from None


@cache
def stacks() -> dict[str, Stack]:
    """Every stack by name."""
    return {name: find_stack(name) for name in STACKS}
