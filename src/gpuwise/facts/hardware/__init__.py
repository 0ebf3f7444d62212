"""Devices, processors, boards and systems, their names, and what their drivers report."""
