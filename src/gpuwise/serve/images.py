"""What a server adds to images that are sent to it as tensors over HTTP: reading the request, and the way to the device.

    t(n) = request + n x 12 pixels^2 x (1 / http + 1 / (0.8 pcie))

An image is three channels of fp32, as Triton's performance client sends it (602 kB at 224 x 224). ``request`` and ``http`` are
fitted on 16 latencies of ResNet-50 in fp16 on T4 and A100 (Triton with ONNX Runtime's TensorRT, one client on the same machine,
batches of 1 to 128; NVIDIA/DeepLearningExamples, PyTorch/Classification/ConvNets/triton/resnet50/README.md, offline scenario),
with the kernels predicted here; those of A40 and V100 are 10 and 17 % off at the median (kernels alone 72 and 77). Left out: the
decoding of JPEG files, which clients do there; several clients, whose requests are read side by side.
"""

from __future__ import annotations

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.units import GIGA, MILLI

REQUEST_S = 1.548 * MILLI
"""Of one request, whatever is in it."""
HTTP_BYTES_PER_S = 2.429 * GIGA
"""At which a server reads a request's body and copies it out."""
PCIE_SHARE = 0.8
"""Of the link's rate that a copy from pinned memory reaches."""
CHANNELS, ELEMENT_BYTES = 3, 4


def tensor_bytes(pixels: int) -> int:
    """Of one square image. Raises InputError for a side below 1."""
    if pixels < 1:
        raise InputError(f"an image of {pixels} pixels", hint="at least 1")
    return CHANNELS * ELEMENT_BYTES * pixels**2


def server_adds_s(accelerator: Accelerator, pixels: int, images: int) -> float:
    """Seconds that a request of ``images`` square images takes beside the network itself. Devices that share the host's memory,
    or whose link is not known, take them from there."""
    link = None if accelerator.unified_memory else accelerator.pcie_bytes_per_s
    way = 0.0 if link is None else 1.0 / (PCIE_SHARE * link)
    return REQUEST_S + images * tensor_bytes(pixels) * (1.0 / HTTP_BYTES_PER_S + way)
