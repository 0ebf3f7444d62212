"""A pytest plugin: ``pytest_plugins = ["gpuwise.testing.fake_nvml.fixture"]``, or ``-p gpuwise.testing.fake_nvml.fixture``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from gpuwise.testing.fake_nvml.build import NoCompilerError
from gpuwise.testing.fake_nvml.control import FakeNvml
from gpuwise.testing.fake_nvml.control import fake_nvml as make


@pytest.fixture
def fake_nvml() -> Iterator[Callable[..., FakeNvml]]:
    """Makes fake machines that go with the test: ``fake_nvml(["T4"])``. Skips where there is no C compiler."""
    with ExitStack() as stack:

        def factory(*args: Any, **kwargs: Any) -> FakeNvml:
            try:
                return stack.enter_context(make(*args, **kwargs))
            except NoCompilerError as error:
                pytest.skip(str(error))

        yield factory
