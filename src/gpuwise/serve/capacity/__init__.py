"""How much a server carries within a latency target, with which settings, and what a fleet for it costs.

``configurations`` ways to run an engine on a system, ``rate`` the largest rate within the targets by simulated runs, ``search``
over the ways, ``fleet`` replicas, money and energy, ``changes`` what one change brings, ``answer`` all of it, ``commands`` the
engine's own command line and the load test that would prove it, ``document`` as JSON.
"""
