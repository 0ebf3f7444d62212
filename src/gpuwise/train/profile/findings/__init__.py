"""Findings of a profile: each waste with its evidence, the seconds a step it costs, and the fix."""
