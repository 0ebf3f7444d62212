"""The tool in NVIDIA's build of PyTorch: a Dockerfile that hadolint 2.15.1 finds nothing in, ``docker run`` and a compose file of
the Compose Specification."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwise.export.engines.start import STORAGE, Start
from gpuwise.export.job import Job
from gpuwise.export.yaml import to_yaml
from gpuwise.facts.software.compatibility import Image, Version, family_driver, ngc_image, parse_capability, parse_version

DOCKER = "Docker Engine 28"
COMPOSE = "Compose Specification, read by compose-spec 0.2"
_STACK_BYTES = 67108864
"""``docker run`` as NVIDIA's release notes of its PyTorch image have it."""


def image_of(job: Job) -> Image | None:
    """The newest image that runs on the job's GPUs and driver."""
    capability = job.cluster.accelerator.compute_capability
    driver = None if job.driver is None else parse_version(job.driver)
    return None if capability is None else ngc_image([parse_capability(capability)], driver)


def gaps(job: Job) -> Iterator[str]:
    """Reason if there is no image."""
    if image_of(job) is None:
        yield f"an image of NVIDIA's with PyTorch for {job.cluster.accelerator.name}" + (
            f" with driver {job.driver}" if job.driver else ""
        )


def _text(version: Version) -> str:
    return ".".join(map(str, version))


def notes(job: Job) -> tuple[str, ...]:
    """Requirements of the image on the nodes."""
    image = image_of(job)
    assert image is not None
    least = family_driver(image.cuda)
    driver_hint = (
        ""
        if least is None or job.driver is not None
        else f"; --driver with the number of yours chooses one for an older than {_text(least)}"
    )
    return (f"{image.name} brings CUDA {_text(image.cuda)}{driver_hint}",)


def dockerfile(start: Start) -> str:
    """The image: the tool, and the files of the job."""
    image = image_of(start.job)
    assert image is not None
    lines = [f"# {start.title}", f"FROM {image.name}", "WORKDIR /job"]
    lines += [f"RUN {start.tool.setup}"] if start.tool.setup else []
    return "\n".join([*lines, f"COPY {' '.join(sorted(start.inner.files))} ./", 'CMD ["./train.sh"]']) + "\n"


def docker(start: Start) -> dict[str, str]:
    """Builds, then runs on this node."""
    of = start.job
    words = ["exec docker run --rm --gpus", "all" if of.gpus_per_node == of.cluster.system.count else str(of.gpus_per_node)]
    words += ["--ipc=host --network=host --ulimit memlock=-1", f"--ulimit stack={_STACK_BYTES}"]
    words += ["--env HEAD_NODE --env NODE_RANK"] if of.n_nodes > 1 else []
    # docker waits ten seconds before it kills
    words += [f"--env HF_TOKEN --stop-timeout {start.grace_s}", f'--volume "$PWD{STORAGE}:{STORAGE}"', of.name]
    lines = ["#!/usr/bin/env bash", f"# {start.title}", "set -euo pipefail", f"docker build --tag {of.name} .", " ".join(words)]
    return {"Dockerfile": dockerfile(start), "docker.sh": "\n".join(lines) + "\n"}


def compose(start: Start) -> dict[str, str]:
    """The same as a service."""
    of = start.job
    every = "all" if of.gpus_per_node == of.cluster.system.count else of.gpus_per_node
    service = {
        "build": ".",
        "image": of.name,
        "ipc": "host",
        "network_mode": "host",
        "ulimits": {"memlock": -1, "stack": _STACK_BYTES},
        "environment": ["HF_TOKEN", *(["HEAD_NODE", "NODE_RANK"] if of.n_nodes > 1 else [])],
        "volumes": [f".{STORAGE}:{STORAGE}"],
        "stop_grace_period": f"{start.grace_s}s",
        "deploy": {"resources": {"reservations": {"devices": [{"driver": "nvidia", "count": every, "capabilities": ["gpu"]}]}}},
    }
    return {"Dockerfile": dockerfile(start), "compose.yaml": to_yaml({"services": {"train": service}}, start.title)}
