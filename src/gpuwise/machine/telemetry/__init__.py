"""Devices over time: sampling, history, causes of slowdowns, recording, exporting.

:class:`~gpuwise.machine.telemetry.monitor.Monitor` returns a :class:`~gpuwise.machine.telemetry.frames.Frame` at each refresh;
:func:`~gpuwise.machine.telemetry.causes.table.find_causes` explains why each card of it is slow.
"""
