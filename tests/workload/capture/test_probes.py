"""Every feature a real program uses runs on the pretended accelerator, and torch is as before afterwards."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from gpuwise.workload.capture.accelerator import FakeAccelerator  # noqa: E402
from gpuwise.workload.capture.device.ledger import inside  # noqa: E402


def _load(path):
    spec = importlib.util.spec_from_file_location(f"capture_{path.stem}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


probes = _load(Path(__file__).with_name("probes.py"))
for _path in sorted(Path(__file__).parent.glob("probes_*.py")):
    _load(_path)


class Tally:
    """Counts what it hears and checks that births and deaths pair up."""

    def __init__(self):
        self.operations, self.alive, self.live_bytes, self.findings = 0, {}, 0, []

    def operation(self, func, args, kwargs, result, flags):
        self.operations += 1
        assert inside[0] == 0, "the observer must see the program's devices"

    def born(self, storage, nbytes, host):
        assert storage._cdata not in self.alive and nbytes >= 0
        self.alive[storage._cdata] = (nbytes, host)

    def freed(self, key, nbytes, host):
        assert self.alive.pop(key) == (nbytes, host)

    def resized(self, key, old, new):
        held, host = self.alive[key]
        assert held == old
        self.alive[key] = (new, host)

    def finding(self, kind, message, hint):
        self.findings.append((kind, message, hint))

    def position(self):
        return self.operations

    def replayed(self, first, end):
        self.operations += end - first


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(probes.PROBES))
def test_probe(name):
    tally = Tally()
    before = state_of_torch()
    with FakeAccelerator(observer=tally) as acc:
        probes.PROBES[name]()
        live = sum(n for n, host in tally.alive.values() if not host)
        assert live == acc.ledger.live_bytes and acc.ledger.peak_bytes >= live
    assert state_of_torch() == before
    assert not torch.zeros(3).is_cuda and torch.zeros(3).add(1).tolist() == [1, 1, 1]


def state_of_torch():
    """Everything a capture replaces, as it stands."""
    names = {
        torch: ("compile", "Generator", "Stream", "Event", "as_tensor", "empty", "zeros", "clear_autocast_cache"),
        torch.Tensor: (
            "to",
            "cuda",
            "cpu",
            "numpy",
            "tolist",
            "device",
            "is_cuda",
            "data",
            "pin_memory",
            "record_stream",
            "__repr__",
        ),
        torch.cuda: tuple(n for n in dir(torch.cuda) if not n.startswith("__")),
        torch.accelerator: tuple(n for n in dir(torch.accelerator) if not n.startswith("__")),
        torch._C: ("_group_tensors_by_device_and_dtype", "_accelerator_exchangeDevice", "_accelerator_maybeExchangeDevice"),
        torch.UntypedStorage: ("resize_",),
    }
    things = {(owner.__name__, n): getattr(owner, n, None) for owner, all_names in names.items() for n in all_names}
    # torch imports parts of itself when they are first asked for: those are no replacements
    held = {k: id(thing) for k, thing in things.items() if not isinstance(thing, ModuleType)}
    modes = torch._C._len_torch_dispatch_stack(), torch._C._only_lift_cpu_tensors()
    kernels = len(torch._C._dispatch_get_registrations_for_dispatch_key("AutogradMeta"))
    return held, modes, kernels, "device" in vars(torch.Tensor)


def test_there_are_many_probes():
    assert len(probes.PROBES) >= 60


def test_restored_after_an_exception():
    before = state_of_torch()
    with pytest.raises(ZeroDivisionError), FakeAccelerator():
        torch.ones(3, device="cuda")
        1 / 0  # noqa: B018
    assert state_of_torch() == before
    with FakeAccelerator():
        assert torch.ones(3, device="cuda").is_cuda


def test_nested_use_is_refused_and_harmless():
    from gpuwise.errors import InputError

    with FakeAccelerator():
        with pytest.raises(InputError, match="already running"), FakeAccelerator():
            pass
        assert torch.ones(3, device="cuda").is_cuda
    assert state_of_torch()[1] == (0, False)


def test_concurrent_use_is_refused():
    import threading

    from gpuwise.errors import InputError

    caught = []

    def other():
        try:
            with FakeAccelerator():
                pass
        except InputError as error:
            caught.append(error)

    with FakeAccelerator():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(caught) == 1


def test_absurd_settings_are_refused():
    from gpuwise.errors import InputError

    for bad in ({"device_count": 0}, {"total_memory_bytes": 0}):
        with pytest.raises(InputError):
            FakeAccelerator(**bad)


@pytest.mark.parametrize(
    "name",
    [
        "cnn",
        "transformer_layers",
        "amp_fp16_scaler",
        "recurrent_layers",
        "optimizer_adamw_foreach",
        "indexing_and_sorting",
        "attention_shapes",
        "checkpoints",
    ],
)
def test_memo_changes_nothing(name):
    """The calls an observer gets are the same with and without the memo of kernel results."""

    def record(memo):
        calls = []

        class Log(Tally):
            def operation(self, func, args, kwargs, result, flags):
                calls.append((str(func), shapes(args), shapes(list((kwargs or {}).values())), shapes(result), flags))

            def born(self, storage, nbytes, host):
                super().born(storage, nbytes, host)
                calls.append(("born", nbytes, host))

            def freed(self, key, nbytes, host):
                super().freed(key, nbytes, host)
                calls.append(("freed", nbytes, host))

        with warnings.catch_warnings(), FakeAccelerator(observer=Log(), memo=memo):
            warnings.simplefilter("ignore")
            probes.PROBES[name]()
            probes.PROBES[name]()
        return calls

    with_memo, without = record(True), record(False)
    for i, (a, b) in enumerate(zip(with_memo, without, strict=False)):
        assert a == b, f"call {i}"
    assert len(with_memo) == len(without)


def shapes(value):
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.storage_offset(), str(value.device)
    if isinstance(value, (list, tuple)):
        return tuple(shapes(v) for v in value)
    return value if isinstance(value, (int, float, bool, str, type(None))) else str(value)
