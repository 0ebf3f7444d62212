# pyright: basic, reportPrivateImportUsage=false, reportAttributeAccessIssue=false
"""The dispatch mode of a capture: every aten operation passes here, below autograd and above the kernels.

Tensors on the fake device are plain meta tensors, so is every host tensor that may be a weight (floating point, of more than
``HOST_LIMIT`` elements, made from no other tensor); other host tensors are real and keep their values up to ``REAL_LIMIT``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gpuwise.errors import NoFakeRuleError
from gpuwise.workload.capture.captured import OpFlag
from gpuwise.workload.capture.device.ledger import CUDA0, HOST, META, inside
from gpuwise.workload.capture.device.memo import ARG, DIRECT, MANY, NEW, VALUE, OpInfo, Scan, plan_of
from gpuwise.workload.capture.device.mode import PlainMode, dispatches_itself

if TYPE_CHECKING:
    from gpuwise.workload.capture.device.state import DeviceState

aten = torch.ops.aten
HOST_LIMIT = 4096
"""Host tensors with up to this many elements stay real."""
REAL_LIMIT = 2**22
"""So do those with up to this many elements that are data: integers, and what is computed from real tensors."""
_MIXING_ALLOWED = frozenset(
    {
        "aten::copy_",
        "aten::_to_copy",
        "aten::index.Tensor",
        "aten::index_put_",
        "aten::_index_put_impl_",
        "aten::index_put",
        "aten::_pack_padded_sequence",
        "aten::_ctc_loss.Tensor",
        "aten::set_.source_Tensor",
        "aten::empty_like",
        "aten::_cudnn_rnn",
    }
)
_FILLS = frozenset({"normal_", "uniform_", "random_", "exponential_", "zero_", "fill_"})
"""In-place operations whose meta kernels compute nothing and load torch's Python decompositions to do it."""
_empty_strided = torch._C._VariableFunctions.empty_strided
_MICRO = int(OpFlag.MICRO)


class CaptureMode(PlainMode):
    """Runs operations without computing, tracks storages and notifies the observer."""

    def __init__(self, accelerator: DeviceState, handlers: Mapping[Any, Any]) -> None:
        super().__init__()
        self.handlers = handlers
        """Operations whose result depends on values, by overload: who answers instead of the meta kernel."""
        self.acc = accelerator
        self.ledger = accelerator.ledger
        self.infos: dict[Any, OpInfo] = {}
        self.memo = accelerator.memo

    @property
    def host_limit(self) -> int:
        return HOST_LIMIT

    def info(self, func: Any) -> OpInfo:
        info = OpInfo(func)
        info.handler = self.handlers.get(func) or self.handlers.get(func._schema.name)
        self.infos[func] = info
        return info

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and dispatches_itself(types):
            return NotImplemented
        info = self.infos.get(func)
        if info is None:
            if not isinstance(func, torch._ops.OpOverload):
                return func(*args, **(kwargs or {}))
            info = self.info(func)
        if kwargs is None:
            kwargs = {}
        if info.handler is not None:
            return info.handler(self, info, args, kwargs)
        return self.run(info, args, kwargs)

    # -- one operation -----------------------------------------------------------------------------------------------

    def run(self, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], flags: int = 0) -> Any:
        """Return the result of ``info.func`` on real hardware, metadata only, and notify the observer."""
        scan = Scan()
        add = scan.add
        matter = info.floats_matter
        for arg in args:
            add(arg, matter)
        device = None
        if kwargs:
            for name, value in kwargs.items():
                if name == "device":
                    device = value
                    continue
                scan.key.append(name)
                if name == "generator":
                    continue
                add(value, matter)
        if self.acc.host_is_device and info.has_device and not (scan.meta or scan.cpu) and _is_host(device):
            device = device if info.short == "randperm" else CUDA0  # the order of samples stays real
        if device is None:
            if not scan.meta:
                return self._host(info, args, kwargs, scan)
            label = self._label(info, scan) if self.ledger.labels else CUDA0
        else:
            label = device if isinstance(device, torch.device) else torch.device(device)
            if label.type == "cuda":
                label = self.acc.device_of(label)
            elif label.type == "cpu":
                if not scan.meta:
                    return self._host(info, args, kwargs, scan)
                label = HOST
            elif label.type != "meta":
                return func_direct(info.func, args, kwargs)
            elif not self.acc.meta_depth:  # torch itself reads "the device of that tensor", which it sees as meta
                label = self._label(info, scan) if scan.meta and self.ledger.labels else CUDA0
            kwargs = {**kwargs, "device": META}
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
        if scan.cpu and label.type == "cuda" and len(scan.meta) and not info.has_device:
            self._check_mix(info, scan)
        if label is not CUDA0 and label.type != "cuda":
            return self._make(info, args, kwargs, scan, label)
        result = self._make(info, args, kwargs, scan, label)
        acc = self.acc
        acc.values.follow(info, args, kwargs, result, scan.meta)
        acc.observer.operation(info.func, args, kwargs, result, flags | acc.region_flags() | (_MICRO if info.view else 0))
        return result

    def _make(self, info: OpInfo, args: Any, kwargs: Any, scan: Scan, label: torch.device) -> Any:
        if info.view:
            return self._kernel(info, args, kwargs, scan)
        if not self.memo:
            result = self._kernel(info, args, kwargs, scan)
            self._after(result, info, scan, label)
            return result
        key = tuple(scan.key)
        plan = info.plans.get(key)
        if plan is None:
            result = self._kernel(info, args, kwargs, scan)
            unchanged = info.planned and (not info.mutable or self._same_key(info, args, kwargs, key))
            info.plans[key] = plan_of(result, args, scan.meta) if unchanged else (DIRECT,)
            self._after(result, info, scan, label)
            return result
        kind = plan[0]
        if kind == NEW:
            return self._new(plan, label)
        if kind == ARG:
            return args[plan[1]]
        if kind == MANY:
            return plan[1]([self._from_plan(p, args, label) for p in plan[2]])
        if kind == VALUE:
            return plan[1]
        result = self._kernel(info, args, kwargs, scan)
        self._after(result, info, scan, label)
        return result

    def _from_plan(self, plan: tuple[Any, ...], args: Any, label: torch.device) -> Any:
        kind = plan[0]
        if kind == NEW:
            return self._new(plan, label)
        if kind == ARG:
            return args[plan[1]]
        if kind == MANY:
            return plan[1]([self._from_plan(p, args, label) for p in plan[2]])
        return plan[1]

    def _new(self, plan: tuple[Any, ...], label: torch.device) -> Tensor:
        out = _empty_strided(plan[1], plan[2], dtype=plan[3], device=META)
        storage = out.untyped_storage()
        self.ledger.birth(storage, storage._cdata, plan[4], label)
        return out

    def _kernel(self, info: OpInfo, args: Any, kwargs: Any, scan: Scan) -> Any:
        """Run the meta kernel; real host tensors among the arguments take part as meta tensors."""
        if info.short in _FILLS and args and args[0].is_meta:
            return args[0]
        if scan.cpu:
            args = _as_meta(args)
            kwargs = _as_meta(kwargs)
        if "generator" in kwargs:
            kwargs = {**kwargs, "generator": None}
        inside[0] += 1
        try:
            return info.func(*args, **kwargs)
        except NotImplementedError as error:
            if info.mutable and not info.fresh:  # writes in place only: no shape is in doubt
                return args[info.written] if info.written is not None else None
            raise NoFakeRuleError(info.func._schema.name, str(error).partition("\n")[0]) from error
        finally:
            inside[0] -= 1

    def _after(self, result: Any, info: OpInfo, scan: Scan, label: torch.device) -> None:
        """Births of what a kernel made; storages it resized."""
        if isinstance(result, Tensor):
            if result.is_meta and result.layout is torch.strided:
                self.ledger.see(result, label)
        elif isinstance(result, (list, tuple)):
            for item in result:
                self._after(item, info, scan, label)
            return
        if info.mutable:
            for tensor in scan.meta:
                if tensor.layout is torch.strided:
                    self.ledger.resize(tensor.untyped_storage())

    def _same_key(self, info: OpInfo, args: Any, kwargs: Any, key: Any) -> bool:
        scan = Scan()
        for arg in args:
            scan.add(arg, info.floats_matter)
        for name, value in kwargs.items():
            if name == "device":
                continue
            scan.key.append(name)
            if name != "generator":
                scan.add(value, info.floats_matter)
        return tuple(scan.key) == key

    # -- where things live -------------------------------------------------------------------------------------------

    def _label(self, info: OpInfo, scan: Scan) -> torch.device:
        """The device of a call's result: that of its tensors; several devices at once are an error as on hardware."""
        labels = self.ledger.labels
        device: torch.device | None = None
        mixed: torch.device | None = None
        for tensor in scan.meta:
            label = labels.get(tensor.untyped_storage()._cdata, CUDA0) if tensor.layout is torch.strided else CUDA0
            if device is None:
                device = label
            elif label != device:
                if label.type == "cuda" and device.type != "cuda":
                    device, mixed = label, device
                else:
                    mixed = label
        if mixed is not None and not self.acc.host_is_device and info.func._schema.name not in _MIXING_ALLOWED:
            self.acc.mixed(info.func, device, mixed)
        return device or CUDA0

    def _check_mix(self, info: OpInfo, scan: Scan) -> None:
        schema = info.func._schema
        if self.acc.host_is_device:
            return
        if all(t.dim() == 0 for t in scan.cpu) or str(schema.name) in _MIXING_ALLOWED or _name(schema) in _MIXING_ALLOWED:
            return
        self.acc.mixed(info.func, CUDA0, HOST)

    def _host(self, info: OpInfo, args: Any, kwargs: Any, scan: Scan) -> Any:
        """An operation on the host: small results are computed for real, large ones only pretended."""
        func = info.func
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        if info.view or info.mutable:
            return func_direct(func, args, kwargs)
        if info.has_device and (not scan.cpu or info.takes_size or any(t.numel() > HOST_LIMIT for t in scan.cpu)):
            spec = self._kernel(info, args, {**kwargs, "device": META}, scan)
            if isinstance(spec, Tensor) and spec.numel() > _real_limit(info, spec):
                self.ledger.see(spec, HOST)
                return spec
        return self._adopt_host(func_direct(func, args, kwargs), scan)

    def _adopt_host(self, result: Any, scan: Scan) -> Any:
        """Large real results become pretended host tensors, so that building a model on the host stays cheap."""
        if isinstance(result, Tensor):
            if result.numel() <= REAL_LIMIT or result.is_meta or result.layout is not torch.strided:
                return result
            key = result.untyped_storage()._cdata
            if any(t.layout is torch.strided and t.untyped_storage()._cdata == key for t in scan.cpu):
                return result
            out = _empty_strided(result.shape, result.stride(), dtype=result.dtype, device=META)
            self.ledger.see(out, HOST)
            return out
        if type(result) in (list, tuple):
            return type(result)([self._adopt_host(r, scan) for r in result])
        return result


def _real_limit(info: OpInfo, made: Tensor) -> int:
    """Elements up to which what an operation makes on the host is computed."""
    is_data = info.func is aten._to_copy.default or not (made.is_floating_point() or made.is_complex())
    return REAL_LIMIT if is_data else HOST_LIMIT


def _is_host(device: Any) -> bool:
    return device is None or (isinstance(device, torch.device) and device.type == "cpu")


def func_direct(func: Any, args: Any, kwargs: Any) -> Any:
    inside[0] += 1
    try:
        return func(*args, **kwargs)
    finally:
        inside[0] -= 1


def _name(schema: Any) -> str:
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


def _as_meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.is_meta or value.layout is not torch.strided:
            return value
        return _empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META)
    if isinstance(value, (list, tuple)):
        return type(value)([_as_meta(v) for v in value])
    if isinstance(value, dict):
        return {k: _as_meta(v) for k, v in value.items()}
    return value
