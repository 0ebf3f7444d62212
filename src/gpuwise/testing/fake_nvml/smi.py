"""``nvidia-smi`` over the played driver: what programs that run the command read from it.

It asks the library beside it as the real one does, so that its figures are those of every other client. Lists (``-L``), queries
(``--query-gpu``, ``--query-compute-apps``), the table and the XML of ``-q -x`` are answered in the form of driver 580; what
else there is ends with status 2.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from gpuwise.testing.fake_nvml.smi_fields import FIELDS, Field

USAGE, NO_DRIVER, NO_DEVICE = 2, 9, 6
"""Exit codes of the real one: a bad argument, no driver, a device that is not there."""
_MIB = 1 << 20
_APPS: Mapping[str, Callable[[Any, Any, Any], str]] = {
    "timestamp": lambda nvml, card, p: _now(),
    "gpu_name": lambda nvml, card, p: nvml.nvmlDeviceGetName(card),
    "gpu_uuid": lambda nvml, card, p: nvml.nvmlDeviceGetUUID(card),
    "gpu_bus_id": lambda nvml, card, p: nvml.nvmlDeviceGetPciInfo(card).busId,
    "gpu_serial": lambda nvml, card, p: nvml.nvmlDeviceGetSerial(card),
    "pid": lambda nvml, card, p: str(p.pid),
    "process_name": lambda nvml, card, p: nvml.nvmlSystemGetProcessName(p.pid),
    "name": lambda nvml, card, p: nvml.nvmlSystemGetProcessName(p.pid),
    "used_gpu_memory": lambda nvml, card, p: _NA if p.usedGpuMemory is None else f"{p.usedGpuMemory // _MIB} MiB",
    "used_memory": lambda nvml, card, p: _NA if p.usedGpuMemory is None else f"{p.usedGpuMemory // _MIB} MiB",
}
_NA = "[N/A]"
_UNITS = (" %", " MiB", " W", " MHz", " ms")


def main(arguments: Sequence[str]) -> int:
    """The command's exit status."""
    import pynvml  # pyright: ignore[reportMissingTypeStubs]

    nvml: Any = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        sys.stdout.write(_refusal(nvml, error))
        return NO_DRIVER
    try:
        options = _parse(arguments)
        if options is None:
            sys.stdout.write(f"Option {' '.join(arguments)} is not played.\n")
            return USAGE
        cards = _cards(nvml, options.get("id"))
        if cards is None:
            sys.stdout.write("No devices were found\n")
            return NO_DEVICE
        sys.stdout.write(_answer(nvml, options, cards))
        return 0
    except BrokenPipeError:
        return 0
    finally:
        nvml.nvmlShutdown()


def _parse(arguments: Sequence[str]) -> dict[str, str] | None:
    """Options and their values; None for an unsupported one."""
    options: dict[str, str] = {}
    words = list(arguments)
    while words:
        word, _, value = words.pop(0).partition("=")
        name = {"-i": "id", "--id": "id", "-L": "list", "--list-gpus": "list", "-q": "query", "--query": "query"}.get(word)
        name = name or {"-x": "xml", "--xml-format": "xml", "--format": "format"}.get(word)
        if word in ("--query-gpu", "--query-compute-apps"):
            name = word.removeprefix("--query-")
        if name is None:
            return None
        if name in ("id", "format", "gpu", "compute-apps") and not value and words:
            value = words.pop(0)
        options[name] = value
    return options


def _cards(nvml: Any, wanted: str | None) -> list[Any] | None:
    """The requested cards, by number, UUID or bus position; None if one is missing."""
    listed = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    if wanted is None:
        return listed
    cards: list[Any] = []
    for name in wanted.split(","):
        same = [
            c
            for i, c in enumerate(listed)
            if name
            in (str(i), nvml.nvmlDeviceGetUUID(c), nvml.nvmlDeviceGetPciInfo(c).busId, _ask(FIELDS["pci.bus_id"], nvml, c))
        ]
        if not same:
            return None
        cards += same
    return cards


def _answer(nvml: Any, options: Mapping[str, str], cards: Sequence[Any]) -> str:
    if "list" in options:
        return "".join(f"GPU {_index(nvml, c)}: {nvml.nvmlDeviceGetName(c)} (UUID: {nvml.nvmlDeviceGetUUID(c)})\n" for c in cards)
    if "gpu" in options:
        names = [n.strip() for n in options["gpu"].split(",")]
        return _table(names, options.get("format", ""), [[_ask(FIELDS.get(n), nvml, c) for n in names] for c in cards])
    if "compute-apps" in options:
        names = [n.strip() for n in options["compute-apps"].split(",")]
        rows = [[_of_process(nvml, c, p, n) for n in names] for c in cards for p in nvml.nvmlDeviceGetComputeRunningProcesses(c)]
        return _table(names, options.get("format", ""), rows)
    if "xml" in options:
        return _xml(nvml, cards)
    return _screen(nvml, cards)


def _ask(field: Field | None, nvml: Any, card: Any) -> str:
    """One field's text."""
    if field is None:
        return _NA
    try:
        return field.read(nvml, card)
    except nvml.NVMLError:
        return _NA


def _of_process(nvml: Any, card: Any, process: Any, name: str) -> str:
    read = _APPS.get(name)
    try:
        return _NA if read is None else read(nvml, card, process)
    except nvml.NVMLError:
        return "[Not Found]" if "name" in name else _NA


def _table(names: Sequence[str], form: str, rows: Sequence[Sequence[str]]) -> str:
    """Comma-separated values; ``nounits`` takes the units away, ``noheader`` the first line."""
    words = {w.strip() for w in form.split(",")}
    lines: list[str] = []
    if "noheader" not in words:
        lines.append(", ".join(f"{n} [{FIELDS[n].unit}]" if n in FIELDS and FIELDS[n].unit else n for n in names))
    for row in rows:
        shown = [_bare(value) for value in row] if "nounits" in words else row
        lines.append(", ".join(shown))
    return "".join(f"{line}\n" for line in lines)


def _bare(value: str) -> str:
    return next((value.removesuffix(u) for u in _UNITS if value.endswith(u)), value)


def _now() -> str:
    return time.strftime("%Y/%m/%d %H:%M:%S.000")


def _index(nvml: Any, card: Any) -> int:
    return int(nvml.nvmlDeviceGetIndex(card))


def _versions(nvml: Any) -> tuple[str, str]:
    cuda = nvml.nvmlSystemGetCudaDriverVersion()
    return str(nvml.nvmlSystemGetDriverVersion()), f"{cuda // 1000}.{cuda % 1000 // 10}"


def _screen(nvml: Any, cards: Sequence[Any]) -> str:
    """The table that the command prints without an argument."""
    driver, cuda = _versions(nvml)
    bar = f"|{'=' * 41}+{'=' * 24}+{'=' * 22}|"
    lines = [
        time.ctime(),
        f"+{'-' * 89}+",
        f"| {f'NVIDIA-SMI {driver}':<27}{f'Driver Version: {driver}':<31}{f'CUDA Version: {cuda}':<30}|",
        f"|{'-' * 41}+{'-' * 24}+{'-' * 22}+",
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        "|                                         |                        |               MIG M. |",
        bar,
    ]
    for card in cards:

        def f(name: str, card: Any = card) -> str:
            text = _ask(FIELDS[name], nvml, card)
            return "N/A" if text == _NA else text

        index, name = _index(nvml, card), nvml.nvmlDeviceGetName(card)
        persistence = "On" if f("persistence_mode") == "Enabled" else "Off"
        shown = "On" if f("display_active") == "Enabled" else "Off"
        power = f"{_whole(f('power.draw'))}W / {_whole(f('power.limit'))}W"
        memory = f"{f('memory.used').replace(' ', '')} / {f('memory.total').replace(' ', '')}"
        celsius, errors = f("temperature.gpu") + "C", f("ecc.errors.uncorrected.volatile.total")
        lines += [
            f"| {index:>3}  {name:<26}{persistence:>6}   |   {f('pci.bus_id')} {shown:>3} |{errors:>21} |",
            f"| {f('fan.speed').replace(' ', ''):>3} {celsius:>5} {f('pstate'):>5} {power:>23} |{memory:>23} |"
            f"{f('utilization.gpu').replace(' ', ''):>9}{f('compute_mode'):>12} |",
            f"|{' ' * 41}|{' ' * 24}|{f('mig.mode.current'):>21} |",
            f"+{'-' * 41}+{'-' * 24}+{'-' * 22}+",
        ]
    lines += [
        "",
        f"+{'-' * 89}+",
        "| Processes:                                                                              |",
        "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |",
        "|        ID   ID                                                               Usage      |",
        f"|{'=' * 89}|",
    ]
    before = len(lines)
    for card in cards:
        for kind, listed in (
            ("C", nvml.nvmlDeviceGetComputeRunningProcesses(card)),
            ("G", nvml.nvmlDeviceGetGraphicsRunningProcesses(card)),
        ):
            for p in listed:
                held = "N/A" if p.usedGpuMemory is None else f"{p.usedGpuMemory // _MIB}MiB"
                name = _of_process(nvml, card, p, "name")
                lines.append(f"| {_index(nvml, card):>4}   N/A  N/A {p.pid:>16} {kind:>6}   {name[:32]:<32} {held:>12} |")
    if len(lines) == before:
        lines.append(f"|  {'No running processes found':<86} |")
    lines.append(f"+{'-' * 89}+")
    return "".join(f"{line}\n" for line in lines)


def _whole(text: str) -> str:
    """``512`` of ``512.30 W``."""
    number = _bare(text)
    return f"{float(number):.0f}" if number not in ("N/A", _NA) else "N/A"


_XML: Sequence[tuple[str, str]] = (
    ("product_name", "name"),
    ("persistence_mode", "persistence_mode"),
    ("serial", "serial"),
    ("uuid", "uuid"),
    ("minor_number", "index"),
    ("vbios_version", "vbios_version"),
    ("fan_speed", "fan.speed"),
    ("performance_state", "pstate"),
    ("fb_memory_usage/total", "memory.total"),
    ("fb_memory_usage/reserved", "memory.reserved"),
    ("fb_memory_usage/used", "memory.used"),
    ("fb_memory_usage/free", "memory.free"),
    ("bar1_memory_usage/total", "bar1.total"),
    ("bar1_memory_usage/used", "bar1.used"),
    ("compute_mode", "compute_mode"),
    ("utilization/gpu_util", "utilization.gpu"),
    ("utilization/memory_util", "utilization.memory"),
    ("utilization/encoder_util", "utilization.encoder"),
    ("utilization/decoder_util", "utilization.decoder"),
    ("temperature/gpu_temp", "temperature.gpu"),
    ("temperature/memory_temp", "temperature.memory"),
    ("gpu_power_readings/power_state", "pstate"),
    ("gpu_power_readings/average_power_draw", "power.draw.average"),
    ("gpu_power_readings/instant_power_draw", "power.draw.instant"),
    ("gpu_power_readings/current_power_limit", "power.limit"),
    ("gpu_power_readings/default_power_limit", "power.default_limit"),
    ("clocks/graphics_clock", "clocks.gr"),
    ("clocks/sm_clock", "clocks.sm"),
    ("clocks/mem_clock", "clocks.mem"),
    ("clocks/video_clock", "clocks.video"),
    ("max_clocks/sm_clock", "clocks.max.sm"),
    ("max_clocks/mem_clock", "clocks.max.mem"),
)
"""Place in the document -> the field with its text."""


def _xml(nvml: Any, cards: Sequence[Any]) -> str:
    driver, cuda = _versions(nvml)
    lines = [
        '<?xml version="1.0" ?>',
        '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">',
        "<nvidia_smi_log>",
        f"\t<timestamp>{time.ctime()}</timestamp>",
        f"\t<driver_version>{driver}</driver_version>",
        f"\t<cuda_version>{cuda}</cuda_version>",
        f"\t<attached_gpus>{len(cards)}</attached_gpus>",
    ]
    for card in cards:
        lines.append(f'\t<gpu id="{_ask(FIELDS["pci.bus_id"], nvml, card)}">')
        group = ""
        for place, name in _XML:
            outer, _, inner = place.rpartition("/")
            if outer != group:
                lines += [f"\t\t</{group}>"] if group else []
                lines += [f"\t\t<{outer}>"] if outer else []
                group = outer
            value = _ask(FIELDS[name], nvml, card)
            unit = " C" if outer == "temperature" and value != _NA else ""
            shown = "N/A" if value == _NA else escape(value) + unit
            lines.append(f"\t\t{chr(9) * bool(outer)}<{inner}>{shown}</{inner}>")
        lines += [f"\t\t</{group}>"] if group else []
        lines += _xml_place(nvml, card)
        lines.append("\t\t<processes>")
        for p in nvml.nvmlDeviceGetComputeRunningProcesses(card):
            memory = "N/A" if p.usedGpuMemory is None else f"{p.usedGpuMemory // _MIB} MiB"
            name = escape(_of_process(nvml, card, p, "name"))
            lines.append(
                f"\t\t\t<process_info><pid>{p.pid}</pid><type>C</type><process_name>{name}</process_name>"
                f"<used_memory>{memory}</used_memory></process_info>"
            )
        lines += ["\t\t</processes>", "\t</gpu>"]
    return "".join(f"{line}\n" for line in [*lines, "</nvidia_smi_log>"])


def _xml_place(nvml: Any, card: Any) -> list[str]:
    generation, width = (_ask(FIELDS[f"pcie.link.{n}.current"], nvml, card) for n in ("gen", "width"))
    return [
        "\t\t<pci>",
        f"\t\t\t<pci_bus_id>{_ask(FIELDS['pci.bus_id'], nvml, card)}</pci_bus_id>",
        "\t\t\t<pci_gpu_link_info>",
        f"\t\t\t\t<pcie_gen><current_link_gen>{generation}</current_link_gen></pcie_gen>",
        f"\t\t\t\t<link_widths><current_link_width>{width}x</current_link_width></link_widths>",
        "\t\t\t</pci_gpu_link_info>",
        "\t\t</pci>",
    ]


def _refusal(nvml: Any, error: Any) -> str:
    if error.value == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return "Failed to initialize NVML: Driver/library version mismatch\n"
    if error.value == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
            "Make sure that the latest NVIDIA driver is installed and running.\n\n"
        )
    return f"Failed to initialize NVML: {error}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
