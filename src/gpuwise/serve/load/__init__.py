"""What a server is asked for: requests with their lengths and arrival times, and the latency they should see.

``requests`` the columns a simulation or a load test takes, ``lengths`` and ``arrivals`` distributions, ``workloads`` the
catalogue of published ones, ``prefixes`` tokens that requests share, ``traces`` recorded requests, ``targets`` latencies.
"""
