"""What a server adds to an image: published latencies of Triton, and laws."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.errors import InputError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.convnets import known_convnet
from gpuwise.serve.passes.vision import convnet_times, server_adds_s, tensor_bytes

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
TRITON_MS = {
    "a40": (2.031, 2.459, 3.652, 5.078, 9.678, 15.451, 36.147, 67.889),
    "v100-sxm-32gb": (2.838, 3.35, 4.191, 5.979, 9.266, 15.664, 38.412, 82.159),
    "t4": (3.003, 3.998, 5.747, 8.998, 15.113, 28.353, 53.187, 100.155),
}


@pytest.mark.parametrize(("gpu", "published"), TRITON_MS.items())
def test_latencies_of_triton_are_the_published_ones(gpu: str, published: tuple[float, ...]) -> None:
    """ResNet-50 in fp16 with ONNX Runtime's TensorRT (NVIDIA/DeepLearningExamples, ConvNets/triton/resnet50, offline): A40 and
    V100 were not fitted on."""
    net = known_convnet("resnet50")
    assert net is not None
    cluster = find_cluster(f"1x{gpu}")
    times = convnet_times(net, cluster.accelerator)
    found = [1e3 * (times.of(b) + server_adds_s(cluster.accelerator, net.pixels, b)) for b in BATCHES]
    assert float(np.median(np.abs(np.log(np.array(found) / published)))) < 0.2


def test_an_image_on_its_own_host_has_no_way_to_go() -> None:
    jetson = find_cluster("jetson-agx-orin-64gb").accelerator
    t4 = find_cluster("1xt4").accelerator
    assert server_adds_s(jetson, 224, 8) < server_adds_s(t4, 224, 8)
    assert server_adds_s(t4, 448, 1) - server_adds_s(t4, 224, 1) == pytest.approx(
        3 * (server_adds_s(t4, 224, 2) - server_adds_s(t4, 224, 1))
    )
    assert tensor_bytes(224) == 602_112
    with pytest.raises(InputError):
        tensor_bytes(0)
