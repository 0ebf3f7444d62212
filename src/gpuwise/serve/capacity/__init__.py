"""Capacity of a server within latency targets, its settings, and the cost of a fleet.

``configurations`` ways to run an engine on a system, ``rate`` the largest rate within the targets by simulated runs,
``search`` over configurations, ``fleet`` replicas, money and energy, ``changes`` the effect of single changes, ``answer``
everything together, ``commands`` the engine's command line and a load test to verify it, ``document`` as JSON.
"""
