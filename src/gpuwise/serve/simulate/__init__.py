"""Serving engines simulated under load: which requests run in which step, and when their tokens come.

``pool_memory`` the blocks it has, ``texts`` and ``pool`` the prefix cache, ``budget`` vLLM's scheduler,
``kernel_steps`` the seconds of steps from the kernels of an iteration, ``front`` what
stands before the engine, ``server`` all of them at work, ``run`` what came of it.
"""

from gpuwise.serve.load.requests import ClosedLoop, Requests, Texts
from gpuwise.serve.simulate.run import METRICS, Metric, Run
from gpuwise.serve.simulate.server import ROUTINGS, Server

__all__ = ["METRICS", "ROUTINGS", "ClosedLoop", "Metric", "Requests", "Run", "Server", "Texts"]
