"""Load of a server: requests with lengths and arrival times, and latency targets.

``requests`` columns for a simulation or load test, ``lengths`` and ``arrivals`` distributions, ``workloads`` the catalogue of
published ones, ``prefixes`` tokens that requests share, ``traces`` recorded requests, ``targets`` latencies.
"""
