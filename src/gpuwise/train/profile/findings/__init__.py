"""Wastes, each with evidence, the seconds a step it costs, and the mend."""
