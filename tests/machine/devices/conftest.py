"""Fake machines with the devices opened, and a clock of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from gpuwise.machine.devices.nvml.backend import NvmlDevices
from gpuwise.testing.fake_nvml import Card, FakeNvml, fake_nvml


class Clock:
    """Seconds that pass when told."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


Opened = tuple[FakeNvml, NvmlDevices, Clock]


@pytest.fixture
def machine() -> Iterator[Callable[..., Opened]]:
    with ExitStack() as stack:

        def made(*cards: str | Card, **options: Any) -> Opened:
            fake = stack.enter_context(fake_nvml(cards, **options))
            stack.enter_context(fake.in_process())
            clock = Clock()
            devices = NvmlDevices(clock=clock)
            stack.callback(devices.close)
            return fake, devices, clock

        yield made
