"""The Grafana dashboard for the metrics of :mod:`gpuwise.machine.telemetry.outputs.exporter`: ``grafana.json``
beside this file."""

from __future__ import annotations

from pathlib import Path

from gpuwise.errors import DataError
from gpuwise.files import write_text

DASHBOARD_FILE = Path(__file__).with_name("grafana.json")


def dashboard() -> str:
    """The dashboard, as Grafana imports it. Raises DataError where it is missing."""
    try:
        return DASHBOARD_FILE.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"the dashboard cannot be read: {error}", hint="reinstall gpuwise") from error


def write_dashboard(path: Path) -> None:
    """Write the dashboard to ``path``, a .json file. Raises InputError where it cannot be written."""
    write_text(path, dashboard(), (".json",))
