"""Catalogue files as SkyPilot writes them, each with the faults that cloud's file is known for; prices are
invented. And a web server on this machine to fetch them from."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


def info(name: str, count: int, mib: float, total: float | None = None) -> str:
    total = mib * count if total is None else total
    text = (
        f"{{'Gpus': [{{'Name': '{name}', 'Manufacturer': 'NVIDIA', 'Count': {count}, 'MemoryInfo': {{'SizeInMiB': {mib:g}}}}}], "
    )
    return f"\"{text}'TotalGpuMemoryInMiB': {total:g}}}\""


AWS_HEAD = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone,Arch\n"
AWS = AWS_HEAD + "".join(
    f"{row}\n"
    for row in (
        "a1.large,,,2.0,4.0,,0.051,0.051000,us-east-1,use1-az2,arm64",
        f"p5.48xlarge,H100,8.0,192.0,2048.0,{info('H100', 8, 81920)},56.0,30.4,us-east-1,use1-az1,x86_64",
        f"p5.48xlarge,H100,8.0,192.0,2048.0,{info('H100', 8, 81920)},56.0,28.8,us-east-1,use1-az2,x86_64",
        f"p5.48xlarge,H100,8.0,192.0,2048.0,{info('H100', 8, 81920)},64.0,,eu-west-2,euw2-az1,x86_64",
        f"p4d.24xlarge,A100,8.0,96.0,1152.0,{info('A100', 8, 40960)},24.0,24.0,us-east-1,use1-az1,x86_64",
        f"p4d.24xlarge,A100,8.0,96.0,1152.0,{info('A100', 8, 40960)},24.0,24.0,us-west-2,usw2-az1,x86_64",
        f"g6f.large,L4,0.125,2.0,8.0,{info('L4', 1, 2861)},0.2,0.08,us-east-1,use1-az1,x86_64",
        f"g6.xlarge,L4,1.0,4.0,16.0,{info('L4', 1, 22888)},0.8,0.35,us-east-1,use1-az1,x86_64",
        f"g4ad.xlarge,Radeon Pro V520,1.0,4.0,16.0,{info('Radeon Pro V520', 1, 8192)},0.38,0.1,us-east-1,use1-az1,x86_64",
        f"g4dn.xlarge,T4,1.0,4.0,16.0,{info('T4', 1, 16384)},,0.1,us-gov-east-1,x,x86_64",
    )
)
AZURE = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,Generation\n" + "".join(
    f"{row}\n"
    for row in (
        f"Standard_ND96isr_H100_v5,H100,12.0,96.0,1900.0,{info('H100', 12, 81920)},96.0,96.0,eastus,V2",
        f"Standard_NC40ads_H100_v5,H100,1.0,40.0,320.0,{info('H100', 1, 95360)},7.0,2.1,eastus,V2",
        f"Standard_NV6ads_A10_v5,A10,0.167,6.0,55.0,{info('A10', 1, 4096)},0.45,0.1,eastus,V2",
        f"Standard_NC64as_T4_v3,T4,4.0,64.0,440.0,{info('T4', 4, 16384)},4.4,0.9,eastus,V1",
    )
)
GCP = """InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice
a3-highgpu-8g,208.0,1872.0,,,,us-central1,us-central1-a,9.6,2.4
a3-highgpu-8g,208.0,1872.0,,,,us-central1,us-central1-b,9.6,2.4
a3-highgpu-8g,208.0,1872.0,,,,us-lonely1,us-lonely1-a,9.6,2.4
a2-highgpu-1g,12.0,85.0,,,,us-central1,us-central1-a,0.8,0.4
,,,H100,8,,us-central1,us-central1-a,78.4,21.6
,,,H100,8,,us-central1,us-central1-b,78.4,20.0
,,,H100,8,,us-lonely2,us-lonely2-a,78.4,20.0
,,,A100,1,,us-central1,us-central1-a,700.0,1.0
,,,T4,1,,us-central1,us-central1-b,0.35,0.14
,,,tpu-v6e-8,1,tpu-v6e-8,us-central1,us-central1-a,24.0,4.0
,,,tpu-v6e-64,1,tpu-v6e-64,us-central1,us-central1-a,192.0,32.0
,,,tpu-v6e-64,1,tpu-v6e-64,us-central2,us-central2-b,700.0,700.0
,,,tpu-v4-8,1,tpu-v4-8,us-central2,us-central2-b,12.8,700.0
"""
LAMBDA = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice\n" + "".join(
    f"gpu_8x_h100_sxm5,H100,8.0,208.0,1800.0,32.0,{region},{info('H100', 8, 81920, 81920)},\n"
    f"gpu_1x_a6000,A6000,1.0,14.0,100.0,1.1,{region},{info('A6000', 1, 49152)},0.4\n"
    for region in ("us-east-1", "asia-south-1", "me-west-1")
)
VAST = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region\n" + "".join(
    f"{row}\n"
    for row in (
        f'8x-H100_SXM-32-65536,H100,8,32,64.0,{info("H100", 8, 652472, 652472)},16.00,0.00,"Vietnam, VN, AS"',
        f'1x-H100_NVL-32-65536,H100,1,32,64.0,{info("H100", 1, 95830)},2.10,0.00,", US, NA"',
        f'1x-RTX_4090-32-65536,RTX4090,1,32,64.0,{info("RTX4090", 1, 24564)},0.40,0.00,"Germany, DE, EU"',
        f'1x-RTX_4090-32-65536,RTX4090,1,32,64.0,{info("RTX4090", 1, 49140)},0.60,0.00,"Hong Kong, HK, AS"',
        f'2x-RTX_4070S_Ti-32-65536,RTX4070,2,32,64.0,{info("RTX4070", 2, 32752, 32752)},0.36,0.00,"Bulgaria, BG, EU"',
        f'2x-A100_SXM4-32-65536,A100,2,32,64.0,{info("A100", 2, 81920, 81920)},1.50,0.00,"Slovenia, SI, EU"',
        f'8x-Tesla_V100-32-65536,V100,8,32,64.0,{info("V100", 8, 131072, 131072)},0.80,0.00,"Sweden, SE, EU"',
    )
)
RUNPOD = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Region,SpotPrice,Price,AvailabilityZone,GpuInfo\n"
    + "".join(
        f"{n}x_A100-80GB_SECURE,A100-80GB,{n}.0,8.0,117.0,{region},{1.4 * n:.2f},{1.4 * n:.2f},{region}-1,"
        f"{info('A100 PCIe', n, 80, 80 * n)}\n"
        for region in ("IN", "JP", "CA")
        for n in (1, 2)
    )
)
VERDA = (
    "InstanceType,UpstreamCloudId,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,Price,SpotPrice\n"
    + "".join(
        f"{row}\n"
        for row in (
            f"1B300.30V,1B300.30V,30.0,275.0,B300,1.0,{info('B300', 1, 268288)},FIN-03,7.0,2.45",
            f"2B300.60V,2B300.60V,60.0,550.0,B300,2.0,{info('B300', 2, 268800)},FIN-03,,4.9",
            f"1H200.141S.44V,1H200.141S.44V,44.0,182.0,H200,1.0,{info('H200', 1, 144384)},FIN-02,3.4,1.19",
            f"1H100.80S.32V,1H100.80S.32V,32.0,185.0,H100,1.0,{info('H100', 1, 81920)},FIN-02,2.4,0.84",
            f"1A100.22V,1A100.22V,22.0,120.0,A100-80GB,1.0,{info('A100-80GB', 1, 81920)},FIN-01,1.4,0.49",
            f"1RTXPRO6000.30V,1RTXPRO6000.30V,30.0,90.0,RTX-PRO-6000,1.0,{info('RTX-PRO-6000', 1, 98304)},FIN-03,1.7,0.6",
        )
    )
)
MITHRIL = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,GpuInfo\n" + (
    f"ccs-h200.sxm.1x,H200,1,20,200,1.0,1.0,us-central2-b,{info('H200', 1, 144384)}\n"
    f"h100-80gb.sxm.8x,H100,8,168,1814,8.0,8.0,us-central2-a,{info('H100', 8, 81920)}\n"
)
FLUIDSTACK = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice\n"
CATALOGUES = {
    "aws": AWS,
    "azure": AZURE,
    "gcp": GCP,
    "lambda": LAMBDA,
    "vast": VAST,
    "runpod": RUNPOD,
    "verda": VERDA,
    "mithril": MITHRIL,
    "fluidstack": FLUIDSTACK,
}


@dataclass(slots=True)
class Site:
    """What the server answers by path, and what was asked of it."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    behaviour: dict[str, Callable[[BaseHTTPRequestHandler], None]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list[str])

    def put(self, cloud: str, text: str, version: str = "v8") -> None:
        self.files[f"/{version}/{cloud}/vms.csv"] = text.encode()


@pytest.fixture
def site() -> Iterator[Site]:
    """A server on this machine; empty: everything is 404."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append(self.path)
            if self.path in found.behaviour:
                return found.behaviour[self.path](self)
            body = found.files.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found = Site(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


def page(request: BaseHTTPRequestHandler) -> None:
    """A login page where a file should be."""
    body = b"<!DOCTYPE html><html>Please log in</html>"
    request.send_response(200)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def cut_off(request: BaseHTTPRequestHandler) -> None:
    """Half of what was promised, then the line drops."""
    body = AWS.encode()
    request.send_response(200)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body[: len(body) // 2])


def cut_off_unannounced(request: BaseHTTPRequestHandler) -> None:
    """Half a file by a server that does not say how long it is."""
    request.send_response(200)
    request.end_headers()
    request.wfile.write(AWS.encode()[: len(AWS) // 2])


def endless(request: BaseHTTPRequestHandler) -> None:
    """A file without end."""
    request.send_response(200)
    request.end_headers()
    try:
        while True:
            request.wfile.write(b"x" * 65536)
    except OSError:
        return


def slow(request: BaseHTTPRequestHandler) -> None:
    """A byte now and then: every single read is quick, the whole is not."""
    request.send_response(200)
    request.end_headers()
    try:
        for _ in range(200):
            request.wfile.write(b"x")
            request.wfile.flush()
            time.sleep(0.05)
    except OSError:
        return


def broken(request: BaseHTTPRequestHandler) -> None:
    """A server in trouble."""
    request.send_response(503, "Service Unavailable")
    request.send_header("Content-Length", "0")
    request.end_headers()


def binary(request: BaseHTTPRequestHandler) -> None:
    """Not text."""
    request.send_response(200)
    request.end_headers()
    request.wfile.write(bytes(range(128, 256)))
