"""A container image for this driver and these cards: a Dockerfile and a compose file."""

from __future__ import annotations

from gpuwise.facts.software.compatibility import (
    Image,
    Version,
    Wheel,
    images,
    newest_cuda,
    ngc_image,
    rocm_builds,
    wheels_for,
)
from gpuwise.machine.doctor import fixes
from gpuwise.machine.doctor.observation import Machine
from gpuwise.text import single_line

_CHECK = 'CMD ["python", "-c", "import torch; print(torch.__version__, torch.cuda.is_available())"]'
_PLAIN = "python:3.12-slim"


def dockerfile(m: Machine) -> str:
    """The text of a Dockerfile whose PyTorch runs here."""
    if m.nvidia_cards:
        return _nvidia(m)
    if m.vendor("amd"):
        series, build = rocm_builds()[0]
        index = f"--index-url {fixes.INDEX}/{build}"
        return _lines(
            f"FROM {_PLAIN}",
            f"RUN pip install --no-cache-dir 'torch=={fixes.version_text(series)}.*' {index}",
            "WORKDIR /app",
            _CHECK,
        )
    return _lines(
        "# No GPU answers here: this image computes on the processor.",
        f"FROM {_PLAIN}",
        f"RUN pip install --no-cache-dir torch --index-url {fixes.INDEX}/cpu",
        "WORKDIR /app",
        _CHECK,
    )


def _nvidia(m: Machine) -> str:
    base, wheel = choose_base(m)
    names = ", ".join(dict.fromkeys(c.identity.name for c in m.nvidia_cards))
    # a name with a line end in it would leave the comment
    head = [single_line(f"# For {names} with driver {m.driver_version}.")]
    ngc = choose_ngc(m)
    if ngc is not None:
        head += [f"# NVIDIA's own build of PyTorch, CUDA {fixes.version_text(ngc.cuda)}, also runs here: FROM {ngc.name}"]
    if base is None or wheel is None:
        capabilities = ", ".join(fixes.version_text(c) for c in fixes.capabilities_here(m))
        return _lines(
            *head,
            single_line(
                f"# No image and wheel of the tables run on compute capability {capabilities} with driver {m.driver_version}."
            ),
        )
    install = f"pip install --no-cache-dir {fixes.package('torch', wheel.release)}"
    if not wheel.pypi_default or m.system.machine not in ("x86_64", ""):
        install += f" --index-url {fixes.INDEX}/{wheel.build}"
    of_wheel, of_image = fixes.version_text(wheel.cuda), fixes.version_text(base.cuda)
    return _lines(
        *head,
        f"# The wheel brings CUDA {of_wheel}; the image asks the driver for CUDA {of_image}.",
        f"FROM {base.name}",
        "RUN apt-get update \\",
        " && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 python3-venv \\",
        " && rm -rf /var/lib/apt/lists/* && python3 -m venv /opt/venv",
        "ENV PATH=/opt/venv/bin:$PATH",
        f"RUN {install}",
        "WORKDIR /app",
        _CHECK,
    )


def choose_base(m: Machine) -> tuple[Image | None, Wheel | None]:
    """CUDA's newest base image that this driver starts, and the best wheel for its Python. The image refuses to start on a driver
    whose own CUDA is older than the image's, so the family's minimum is not enough for it."""
    newest, cards, driver = _driver_cuda(m), fixes.capabilities_here(m), fixes.driver_number(m)
    for image in images():
        if image.kind != "cuda" or newest is None or image.cuda > newest:
            continue
        wheels = wheels_for(cards, driver, python=image.python)
        if wheels:
            return image, wheels[0]
    return None, None


def choose_ngc(m: Machine) -> Image | None:
    """NVIDIA's newest PyTorch image that this driver runs; None when no image is old enough, or the cards are of an unserved
    generation."""
    newest, driver = _driver_cuda(m), fixes.driver_number(m)
    if newest is None or driver is None or fixes.needs_closed_modules(m):
        return None
    return ngc_image(fixes.capabilities_here(m), driver, newest)


def _driver_cuda(m: Machine) -> Version | None:
    """The newest CUDA that the driver reports, else by its number."""
    vendor = m.vendor("nvidia")
    if vendor and vendor.driver and vendor.driver.cuda_version:
        return vendor.driver.cuda_version
    driver = fixes.driver_number(m)
    return newest_cuda(driver) if driver else None


def compose(m: Machine) -> str:
    """The text of a compose file that builds the Dockerfile beside it and gives it the GPUs."""
    lines = ["services:", "  app:", "    build: .", "    shm_size: 8gb"]
    if m.nvidia_cards:
        lines += [
            "    deploy:",
            "      resources:",
            "        reservations:",
            "          devices:",
            "            - driver: nvidia",
            "              count: all",
            "              capabilities: [gpu]",
        ]
        if len(m.nvidia_cards) > 1:
            lines += ["    ulimits:", "      memlock: -1", "      stack: 67108864"]
    elif m.vendor("amd"):
        lines += ["    devices:", "      - /dev/kfd", "      - /dev/dri", "    group_add:", "      - video", "      - render"]
    return _lines(*lines)


def _lines(*lines: str) -> str:
    return "\n".join(lines) + "\n"
