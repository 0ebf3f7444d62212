"""Devices, moves between them, and what the device API answers. See ``probes``."""

from __future__ import annotations

import torch
from capture_probes import probe
from torch import nn


@probe
def device_names():
    for device in ("cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0), 0):
        t = torch.zeros(3, device=device)
        assert t.device == torch.device("cuda", 0) and t.is_cuda and not t.is_cpu and t.get_device() == 0
        assert torch.ones(5).to(device).is_cuda
    assert torch.zeros(3).cuda().is_cuda and torch.zeros(3).cuda(0, non_blocking=True).is_cuda
    assert torch.tensor([1, 2, 3], device="cuda").is_cuda
    assert torch.as_tensor([1.0], device="cuda").is_cuda


@probe
def wrong_ordinal():
    try:
        torch.zeros(3).to("cuda:7")
    except RuntimeError as error:
        assert "invalid device ordinal" in str(error)
    else:
        raise AssertionError("cuda:7 does not exist")


@probe
def to_same_device_is_identity():
    t = torch.zeros(3, device="cuda")
    assert t.to("cuda") is t and t.cuda() is t and t.to(torch.float32) is t and t.to("cuda", torch.float32) is t
    assert t.to("cuda", torch.float16).dtype is torch.float16
    assert t.to(dtype=torch.bfloat16, device="cuda", non_blocking=True).dtype is torch.bfloat16
    assert t.to("cuda", copy=True) is not t
    assert t.to(torch.zeros(1, dtype=torch.float64, device="cuda")).dtype is torch.float64


@probe
def device_context():
    with torch.device("cuda"):
        t = torch.zeros(3)
        m = nn.Linear(4, 4)
    assert t.is_cuda and m.weight.is_cuda and torch.zeros(3).device.type == "cpu"


@probe
def default_device():
    torch.set_default_device("cuda")
    try:
        assert torch.zeros(3).is_cuda and nn.Linear(3, 3).weight.is_cuda
    finally:
        torch.set_default_device(None)
    assert torch.zeros(3).device.type == "cpu"


@probe
def small_host_tensors_are_real():
    t = torch.arange(10)
    assert t.sum().item() == 45 and t.numpy().tolist() == list(range(10))


@probe
def large_host_tensors():
    t = torch.randn(5000, 5000, 50)
    assert t.device.type == "cpu" and (t + 1).device.type == "cpu" and t[0].device.type == "cpu"
    d = t.to("cuda")
    assert d.is_cuda and d.to("cpu").device.type == "cpu"
    assert t.numpy().shape == (5000, 5000, 50)


@probe
def mixed_devices_raise():
    for other in (torch.ones(3), torch.ones(100, 100)):
        mine = torch.ones(other.shape, device="cuda")
        try:
            mine + other
        except RuntimeError as error:
            assert "Expected all tensors to be on the same device" in str(error)
        else:
            raise AssertionError("mixing devices must raise")
    assert (torch.ones(3, device="cuda") * torch.tensor(2.0)).is_cuda
    assert torch.ones(4, 3, device="cuda")[torch.tensor([0, 1])].shape == (2, 3)


@probe
def numpy_of_a_device_tensor():
    try:
        torch.ones(3, device="cuda").numpy()
    except TypeError as error:
        assert "can't convert cuda:0 device type tensor to numpy" in str(error)
    else:
        raise AssertionError("numpy() of a device tensor must raise")
    assert torch.ones(3, device="cuda").cpu().numpy().shape == (3,)
    assert torch.ones(100, 100, device="cuda").cpu().numpy().shape == (100, 100)


@probe
def values_read_back():
    t = torch.ones(3, device="cuda")
    assert isinstance(t.sum().item(), float) and isinstance(float(t.sum()), float)
    assert isinstance(t.argmax().item(), int) and isinstance(bool((t > 0).any()), bool)
    assert len(t.tolist()) == 3 and "cuda:0" in repr(t) and f"{t.sum():.3f}"
    assert torch.equal(t, t.clone()) and torch.allclose(t, t)
    assert int(torch.tensor(7, device="cuda")) == 7


@probe
def pinned_copies():
    t = torch.randn(8, 8).pin_memory()
    assert t.to("cuda", non_blocking=True).is_cuda


@probe
def properties_and_memory():
    p = torch.cuda.get_device_properties(0)
    assert p.major == 9 and p.total_memory == 80 << 30 and p.multi_processor_count and torch.cuda.get_device_name()
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
    assert torch.cuda.is_bf16_supported() and torch.cuda.get_device_capability() == (9, 0)
    before = torch.cuda.memory_allocated()
    t = torch.empty(1 << 20, device="cuda")
    assert torch.cuda.memory_allocated() - before == 4 << 20
    free, total = torch.cuda.mem_get_info()
    assert total - free == torch.cuda.memory_allocated()
    del t
    assert torch.cuda.memory_allocated() == before and torch.cuda.max_memory_allocated() >= before + (4 << 20)
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == before
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    torch.cuda.memory_summary()


@probe
def streams_and_events():
    s = torch.cuda.Stream()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        t = torch.ones(3, device="cuda")
        t.record_stream(s)
        assert torch.cuda.current_stream() == s
    torch.cuda.current_stream().wait_stream(s)
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) >= 0 and torch.cuda.current_stream() == torch.cuda.default_stream()


@probe
def accelerator_module():
    assert torch.accelerator.is_available() and torch.accelerator.current_accelerator().type == "cuda"
    assert torch.accelerator.device_count() == 1 and torch.accelerator.current_device_index() == 0
    torch.accelerator.synchronize()


@probe
def generators_and_seeds():
    g = torch.Generator(device="cuda")
    g.manual_seed(3)
    assert torch.randn(3, generator=g, device="cuda").is_cuda and g.device.type == "cuda"
    assert torch.randperm(10, generator=torch.Generator().manual_seed(1)).shape == (10,)
    torch.manual_seed(1)
    torch.cuda.manual_seed_all(1)
    torch.cuda.set_rng_state(torch.cuda.get_rng_state())
    torch.bernoulli(torch.full((4,), 0.5, device="cuda"), generator=g)


@probe
def user_meta_device():
    with torch.device("meta"):
        m = nn.Linear(1000, 1000)
    assert m.weight.device.type == "meta" and torch.cuda.memory_allocated() == 0
    m.to_empty(device="cuda")
    assert m.weight.is_cuda and torch.cuda.memory_allocated() == 4 * (1000 * 1000 + 1000)
    assert torch.empty(5, device="meta").device.type == "meta"


@probe
def what_programs_print_of_the_device():
    made = torch.cuda.get_device_properties(0)
    assert made.max_threads_per_block == 1024 and made.clock_rate > 0 and made.memory_bus_width > 0 and made.memory_clock_rate > 0
    assert (made.pci_domain_id, made.pci_bus_id, made.pci_device_id) == (0, 0, 0)
    if hasattr(torch.cuda, "device_memory_used"):
        before = torch.cuda.device_memory_used()
        kept = torch.zeros(1024, device="cuda")
        assert torch.cuda.device_memory_used() - before == kept.nbytes


@probe
def an_accelerator_by_its_number():
    if hasattr(torch.accelerator, "device_index"):
        with torch.accelerator.device_index(0):
            assert torch.zeros(3, device="cuda").get_device() == 0


@probe
def a_pool_of_its_own():
    if hasattr(torch.cuda, "use_mem_pool"):
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            assert torch.zeros(3, device="cuda").is_cuda
