"""Strategies on hardware: their space and search, what makes them fit, and the answer in words."""

import sys

from gpuwise.packages import CallablePackage

sys.modules[__name__].__class__ = CallablePackage
