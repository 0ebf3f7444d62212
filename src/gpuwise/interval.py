"""The interval that answers come with: the central 80 % of what a value may be."""

INTERVAL = 0.8
"""Share of the possible values that is inside."""
P80 = "80 %"
"""The share as texts name it."""
BAND = (0.1, 0.5, 0.9)
"""Quantiles of the low end, the middle and the high end."""
Z80 = 1.2815515655446004
"""Half its width in standard deviations of a normal distribution: the quantile of the high end."""
