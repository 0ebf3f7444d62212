"""Serving engines simulated under load: the requests of each step, and the times of their tokens.

``pool_memory`` its number of blocks, ``texts`` and ``pool`` the prefix cache, ``budget`` vLLM's scheduler, ``kernel_steps``
the seconds of steps from the kernels of an iteration, ``front`` the server in front of the engine, ``server`` all parts
together, ``run`` the results.
"""

from gpuwise.serve.load.requests import ClosedLoop, Requests, Texts
from gpuwise.serve.simulate.run import METRICS, Metric, Run
from gpuwise.serve.simulate.server import ROUTINGS, Server

__all__ = ["METRICS", "ROUTINGS", "ClosedLoop", "Metric", "Requests", "Run", "Server", "Texts"]
