"""Is this machine ready, and if not, which commands make it so?

``probes`` read the machine, ``checks`` judge it, ``report`` writes the answer.
"""
