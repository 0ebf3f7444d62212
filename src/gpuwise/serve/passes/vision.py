"""CNNs after compilation for inference (:mod:`gpuwise.workload.convnet`), kernels back to back.

A server adds time to read images sent as tensors over HTTP, and to copy them to the device.

    t(n) = request + n x 12 pixels^2 x (1 / http + 1 / (0.8 pcie))

An image is three channels of fp32, as Triton's performance client sends it (602 kB at 224 x 224). ``request`` and ``http`` are
fitted on 16 latencies of ResNet-50 in fp16 on T4 and A100 (Triton with ONNX Runtime's TensorRT, one client on the same
machine, batches of 1 to 128; NVIDIA/DeepLearningExamples, PyTorch/Classification/ConvNets/triton/resnet50/README.md, offline
scenario), with the kernels predicted here; errors on A40 and V100 are 10 and 17 % at the median (kernels alone 72 and 77). Not
included: the decoding of JPEG files, which clients do there; several clients, whose requests are read side by side.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.convnets import ConvNet
from gpuwise.predict.kernels.registry import kernel_times
from gpuwise.predict.kernels.run_formats import default_precision
from gpuwise.serve.passes.batches import BatchTimes
from gpuwise.serve.passes.kind import AS_USUAL, How, Model, PassKind, Way, batches_that_fit
from gpuwise.units import GIGA, MILLI
from gpuwise.workload.convnet import forward_table, parameter_count

REQUEST_S = 1.548 * MILLI
"""Seconds of one request, independent of its content."""
HTTP_BYTES_PER_S = 2.429 * GIGA
"""At which a server reads a request's body and copies it out."""
PCIE_SHARE = 0.8
"""Share of the link's rate that a copy from pinned memory reaches."""
CHANNELS, ELEMENT_BYTES = 3, 4
PHONE_VENDORS = ("Apple", "Google", "Qualcomm")
"""Their compilers place layers on units of which no kernel and no network was measured here."""


class Vision(PassKind):
    """Images that a convolutional network reads."""

    workloads = ("vision",)

    def takes(self, model: Model, workload: str) -> bool:
        return isinstance(model, ConvNet)

    def shape(self, model: Model, workload: str, tokens: int | None) -> tuple[str, int]:
        if workload not in self.workloads:
            raise InputError(f"{model.name} reads images, not text", hint="--workload vision")
        return "images", 0

    def ways(self, model: Model, accelerator: Accelerator, tokens: int) -> Iterator[Way]:
        assert isinstance(model, ConvNet)
        one = forward_table(model, 1, "bf16")
        yield Way("", AS_USUAL, 2.0 * parameter_count(model) + float((one.bytes_read + one.bytes_written).max()))

    def times(self, model: Model, cluster: Cluster, tokens: int, how: How = AS_USUAL) -> BatchTimes:
        assert isinstance(model, ConvNet)
        return convnet_times(model, cluster.accelerator)


def convnet_times(net: ConvNet, accelerator: Accelerator) -> BatchTimes:
    """Seconds of every batch that fits: the kernels of the forward pass in 16 bits, one after the other. Raises as
    :meth:`PassKind.times`."""
    if accelerator.vendor in PHONE_VENDORS:
        raise UnpredictableError(
            f"predictions for such a network have not been checked on {accelerator.name}",
            hint="a Jetson Xavier was: jetson-agx-xavier-32gb",
        )
    precision = default_precision(accelerator)[0]
    dtype = precision if precision in ("bf16", "fp16") else "bf16"
    one = forward_table(net, 1, dtype)
    each = float((one.bytes_read + one.bytes_written).max())
    sizes = batches_that_fit(net.name, accelerator, 2.0 * parameter_count(net), each)
    tables = [forward_table(net, batch, dtype) for batch in sizes]
    timed = [kernel_times(rows, accelerator) for rows in tables]
    seconds = [float((t.time_s * rows.count).sum()) for t, rows in zip(timed, tables, strict=True)]
    last = timed[-1]
    longest = float(last.log_sigma[int(np.argmax(last.time_s))])
    return BatchTimes(sizes, tuple(np.maximum.accumulate(seconds).tolist()), longest, last.basis)


def tensor_bytes(pixels: int) -> int:
    """Bytes of one square image. Raises InputError for a side below 1."""
    if pixels < 1:
        raise InputError(f"an image of {pixels} pixels", hint="at least 1")
    return CHANNELS * ELEMENT_BYTES * pixels**2


def server_adds_s(accelerator: Accelerator, pixels: int, images: int) -> float:
    """Seconds that the server adds to a request of ``images`` square images. No copy is counted for devices that share the
    host's memory, or with an unknown link."""
    link = None if accelerator.unified_memory else accelerator.pcie_bytes_per_s
    way = 0.0 if link is None else 1.0 / (PCIE_SHARE * link)
    return REQUEST_S + images * tensor_bytes(pixels) * (1.0 / HTTP_BYTES_PER_S + way)
