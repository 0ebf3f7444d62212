"""What the devices do over time: sampling, history, what holds a device back, recording, exporting.

:class:`~gpuwise.machine.telemetry.monitor.Monitor` gives a :class:`~gpuwise.machine.telemetry.frames.Frame` at each refresh;
:func:`~gpuwise.machine.telemetry.causes.table.find_causes` says why each card of it is slow.
"""
