"""A script by itself, without anything of gpuwise; ``GIVEN`` is set by the process that starts it."""

from __future__ import annotations

import runpy
import sys

import torch

script, arguments = GIVEN  # type: ignore[name-defined]  # noqa: F821
torch.set_num_threads(1)
sys.argv = [script, *arguments]
runpy.run_path(script, run_name="__main__")
