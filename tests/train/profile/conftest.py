"""Small traces of a GPU's work, written as Kineto writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

MAIN = 100
H100 = {
    "id": 0,
    "name": "NVIDIA H100 80GB HBM3",
    "totalGlobalMem": 85017755648,
    "computeMajor": 9,
    "computeMinor": 0,
    "numSms": 132,
}
T4 = {"id": 0, "name": "Tesla T4", "totalGlobalMem": 15655829504, "computeMajor": 7, "computeMinor": 5, "numSms": 40}


class Kineto:
    """Appends events; times in microseconds."""

    H100, T4 = H100, T4

    def __init__(self, device: dict[str, Any] | None = None, rank: int | None = None) -> None:
        self.device, self.rank = H100 if device is None else device, rank
        self.events: list[dict[str, Any]] = []
        self._n = 0

    def host(self, name: str, at: float, long: float, cat: str = "cpu_op", tid: int = MAIN, **args: Any) -> int:
        """Something of the host; returns its external id."""
        self._n += 1
        told = {"External id": self._n, **args}
        self.events.append({"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": at, "dur": long, "args": told})
        return self._n

    def op(
        self, name: str, at: float, long: float, shapes: list[list[int]] | None = None, dtype: str = "float", tid: int = MAIN
    ) -> int:
        """An operation with its inputs."""
        given = {} if shapes is None else {"Input Dims": shapes, "Input type": [dtype if s else "" for s in shapes]}
        return self.host(name, at, long, tid=tid, **given)

    def kernel(
        self,
        name: str,
        at: float,
        long: float,
        launched: float,
        of: int = -1,
        stream: int = 7,
        cat: str = "kernel",
        launcher: str = "cudaLaunchKernel",
        **args: Any,
    ) -> None:
        """Work on the GPU, and its launch."""
        self._n += 1
        own = {"correlation": self._n, "External id": of}
        call = {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": launcher,
            "pid": 1,
            "tid": MAIN,
            "ts": launched,
            "dur": 3.0,
            "args": own,
        }
        work = {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": 0,
            "tid": stream,
            "ts": at,
            "dur": long,
            "args": {**own, "device": 0, "stream": stream, **args},
        }
        self.events += [call, work]

    def step(self, number: int, at: float, long: float) -> None:
        """The range of a step."""
        self.host(f"ProfilerStep#{number}", at, long, cat="user_annotation")

    def product(
        self,
        at: float,
        long: float,
        m: int,
        n: int,
        k: int,
        dtype: str = "float",
        kernel: str = "ampere_sgemm_128x64_tn",
        name: str = "aten::mm",
        lead: float = 30.0,
    ) -> None:
        """A product on the GPU, issued ``lead`` before it runs."""
        of = self.op(name, at - lead, 8, [[m, k], [k, n]], dtype)
        self.kernel(kernel, at, long, at - lead + 3, of)

    def write(self, path: Path) -> Path:
        """The file."""
        text = ",".join("\n  " + json.dumps(e, indent=2).replace("\n", "\n  ") for e in self.events)
        told: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [self.device]}
        if self.rank is not None:
            told["distributedInfo"] = {"backend": "nccl", "rank": self.rank, "world_size": 4}
        head = json.dumps(told, indent=2)[:-2]
        path.write_text(f'{head},\n  "traceEvents": [{text}\n  ],"traceName": "t" }}')
        return path


@pytest.fixture
def kineto() -> type[Kineto]:
    """The builder of traces."""
    return Kineto


@pytest.fixture(scope="session")
def kineto_class() -> type[Kineto]:
    """The same, for tests that hypothesis runs many times."""
    return Kineto
