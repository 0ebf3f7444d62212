"""The Grafana dashboard for the metrics of :mod:`gpuwise.machine.telemetry.outputs.exporter`: ``grafana.json``
beside this file."""

from __future__ import annotations

from pathlib import Path

from gpuwise.errors import DataError, InputError

DASHBOARD_FILE = Path(__file__).with_name("grafana.json")


def dashboard() -> str:
    """The dashboard, as Grafana imports it. Raises DataError where it is missing."""
    try:
        return DASHBOARD_FILE.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"the dashboard cannot be read: {error}", hint="reinstall gpuwise") from error


def write_dashboard(path: Path) -> None:
    """Write the dashboard to ``path``. Raises InputError where it cannot be written."""
    text = dashboard()
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}", hint="check the folder") from error
