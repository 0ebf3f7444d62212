"""Which accelerator for which job and purse: it ranks, compares and composes; time, memory and money come from the rooms
below."""

import sys

from gpuwise.packages import CallablePackage

sys.modules[__name__].__class__ = CallablePackage
