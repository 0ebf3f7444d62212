"""A published run on the simulated engine."""

from __future__ import annotations

from dataclasses import replace

from gpuwise.calibrate.serving.load import LoadRun
from gpuwise.serve.simulate import Run, Server
from gpuwise.serve.simulate.front import Front, front_of


def replay(run: LoadRun, front: Front | None, slowdown: float = 1.0) -> Run:
    """The run under ``front``, or under the shipped costs; with a ``slowdown`` its requests come so much faster, its times being
    in units so much longer. Raises as :meth:`~gpuwise.serve.simulate.server.Server.run`."""
    assert run.architecture is not None and run.system is not None and run.config is not None and run.requests is not None
    if not run.behind_http:
        front = replace(front or front_of(run.config), request_s=0.0, prompt_token_s=0.0, answer_s=0.0, answer_token_s=0.0)
    server = Server(run.architecture, run.system, run.config, run.settings, front)
    requests = run.requests if slowdown == 1.0 else replace(run.requests, arrival_s=run.requests.arrival_s / slowdown)
    return server.run(requests, closed=run.closed)
