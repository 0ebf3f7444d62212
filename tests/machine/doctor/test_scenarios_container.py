"""Containers, WSL and environment variables: what stands between a healthy driver and a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from gpuwise.errors import DeviceError
from gpuwise.machine.devices.readings import Peer
from gpuwise.machine.doctor.report import diagnose
from studies.scripted_machine import PYTHON, ScriptedMachine, scripted_machine, torch

from .asserting import assert_cause, assert_healthy

CU130 = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"
ROOM = (32 << 30, 32 << 30)
SMALL = (64 << 20, 64 << 20)
NONE_SEEN = torch("2.13.0+cu130", "13.0", CU130, error="No CUDA GPUs are available")
FINE = torch("2.13.0+cu130", "13.0", CU130, devices=[(8, 9)])
WSL_KERNEL = {"/proc/version": "Linux version 5.15.167.4-microsoft-standard-WSL2 (root@x)"}
NO_BUS = ("/sys/bus/pci", "/dev/nvidia", "/proc/driver", "/sys/module", "/proc/modules", "/usr/lib/x86_64", "/lib/modules")


def container(machine: ScriptedMachine, files: Mapping[str, str] = {"/.dockerenv": ""}) -> ScriptedMachine:
    return machine.but(files=files)


def group(share: str, own: str = "0::/\n") -> dict[str, str]:
    """Control groups of version 2 in which this process's has such a ``cpu.max``."""
    folder = own.rpartition(":")[2].strip().rstrip("/")
    return {
        "/proc/self/cgroup": own,
        "/sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
        f"/sys/fs/cgroup{folder}/cpu.max": share,
    }


NO_QUOTA_IN_A_JOB = group("max 100000\n", "0::/slurm/job_7/step\n")
JOB = "/sys/fs/cgroup/slurm/job_7/cpu.max"


def without_nodes(*, answers: tuple = (NONE_SEEN,)) -> ScriptedMachine:
    """A container that was not given the GPU: the bus shows it, nothing else."""
    return container(scripted_machine(driver=None, answers=answers))


def wsl(**kwargs: object) -> ScriptedMachine:
    """WSL 2 as it should be: no PCI device, no kernel module, /dev/dxg, and the driver of Windows."""
    return (
        scripted_machine(**kwargs).without(*NO_BUS).but(files={**WSL_KERNEL, "/dev/dxg": "", "/usr/lib/wsl/lib/libcuda.so.1": ""})
    )


def lost_gpu() -> ScriptedMachine:
    failed = DeviceError("NVML: unknown error", vendor="nvidia", code=999)
    return container(scripted_machine(failed=failed, answers=[NONE_SEEN])).but(
        unusable={"/dev/nvidia0": "refused", "/dev/nvidiactl": "refused", "/dev/nvidia-uvm": "refused"}
    )


def env(answer=NONE_SEEN, cards=("RTX 4090",), **variables: str) -> ScriptedMachine:
    return scripted_machine(cards=cards, answers=[answer]).but(environment=variables)


P2P = [Peer(0, 1, "nvlink", 4, True)]

FAULTY: dict[str, tuple[Callable[[], ScriptedMachine], str, tuple[str, ...]]] = {
    "docker without --gpus": (
        without_nodes,
        "container-no-gpu",
        (
            "docker run --rm --gpus all",
            "nvidia-ctk runtime configure --runtime=docker",
            "apt-get install -y nvidia-container-toolkit",
        ),
    ),
    "podman without a device": (
        lambda: without_nodes().but(files={"/.dockerenv": None, "/run/.containerenv": ""}),
        "container-no-gpu",
        ("nvidia-ctk cdi generate", "podman run --rm --device nvidia.com/gpu=all"),
    ),
    "apptainer without --nv": (
        lambda: without_nodes().but(files={"/.dockerenv": None}, environment={"APPTAINER_CONTAINER": "/x.sif"}),
        "container-no-gpu",
        ("apptainer exec --nv",),
    ),
    "asked for GPUs on a machine that shows none": (
        lambda: container(scripted_machine(cards=(), driver=None)).but(environment={"NVIDIA_VISIBLE_DEVICES": "all"}),
        "container-no-gpu",
        ("--gpus all",),
    ),
    "a CUDA build, kept from GPUs that the machine does not show": (
        lambda: container(scripted_machine(cards=(), driver=None, answers=[NONE_SEEN])).but(
            environment={"NVIDIA_VISIBLE_DEVICES": "void"}
        ),
        "container-no-gpu",
        ("--gpus all",),
    ),
    "the GPU went after systemctl daemon-reload": (
        lost_gpu,
        "container-lost-gpu",
        ("docker restart", "--device nvidia.com/gpu=all"),
    ),
    "a container without the compute part": (
        lambda: container(scripted_machine(answers=[NONE_SEEN])).but(
            environment={"NVIDIA_DRIVER_CAPABILITIES": "graphics,utility"}
        ),
        "container-capabilities",
        ("NVIDIA_DRIVER_CAPABILITIES=compute,utility",),
    ),
    "64 MB of shared memory": (
        lambda: container(scripted_machine(answers=[FINE])).but(space={"/dev/shm": SMALL}),
        "container-shm-small",
        ("--shm-size=8g",),
    ),
    "docker told of a runtime that is not there": (
        lambda: scripted_machine(answers=[FINE]).but(
            paths={"docker": "/usr/bin/docker"},
            files={"/etc/docker/daemon.json": '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}'},
        ),
        "docker-runtime-missing",
        ("apt-get install -y nvidia-container-toolkit", "systemctl restart docker"),
    ),
    "a CPU quota smaller than the GPUs": (
        lambda: container(scripted_machine(cards=["H100 SXM"] * 4)).but(files=group("200000 100000\n")),
        "few-cpus",
        ("--cpus=16",),
    ),
    "a CPU quota of a group above": (
        lambda: scripted_machine(cards=["H100 SXM"] * 4).but(
            files=group("max 100000\n", "0::/slurm/job_7/step\n") | {JOB: "200000 100000\n"}
        ),
        "few-cpus",
        (),
    ),
    "a CPU quota of control groups version 1": (
        lambda: container(scripted_machine(cards=["H100 SXM"] * 4)).but(
            files={
                "/proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n",
                "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
                "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            }
        ),
        "few-cpus",
        ("--cpus=16",),
    ),
    "WSL 1": (
        lambda: (
            scripted_machine(driver=None, answers=[NONE_SEEN])
            .without(*NO_BUS)
            .but(files={"/proc/version": "Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com)"})
        ),
        "wsl1",
        ("wsl --set-version",),
    ),
    "WSL without passthrough": (
        lambda: scripted_machine(driver=None, answers=[NONE_SEEN]).without(*NO_BUS).but(files=WSL_KERNEL),
        "wsl-no-passthrough",
        ("wsl --update", "wsl --shutdown"),
    ),
    "a Linux driver inside WSL": (
        lambda: (
            scripted_machine(driver=None, answers=[NONE_SEEN])
            .without(*NO_BUS)
            .but(files={**WSL_KERNEL, "/dev/dxg": "", "/var/lib/dpkg/info/libnvidia-compute-550:amd64.list": ""})
        ),
        "wsl-linux-driver",
        ("apt-get purge -y libnvidia-compute-550", "wsl --shutdown"),
    ),
    "CUDA_VISIBLE_DEVICES=-1": (
        lambda: env(CUDA_VISIBLE_DEVICES="-1"),
        "cuda-visible-devices-empty",
        ("unset CUDA_VISIBLE_DEVICES",),
    ),
    "CUDA_VISIBLE_DEVICES out of range": (
        lambda: env(cards=("RTX 4090",) * 2, CUDA_VISIBLE_DEVICES="4"),
        "cuda-visible-devices-invalid",
        ("export CUDA_VISIBLE_DEVICES=0,1",),
    ),
    "CUDA_VISIBLE_DEVICES with the identifier of another machine": (
        lambda: env(CUDA_VISIBLE_DEVICES="GPU-deadbeef-0"),
        "cuda-visible-devices-invalid",
        ("export CUDA_VISIBLE_DEVICES=0",),
    ),
    "every launch is waited for": (
        lambda: env(FINE, CUDA_LAUNCH_BLOCKING="1"),
        "cuda-launch-blocking",
        ("unset CUDA_LAUNCH_BLOCKING",),
    ),
    "TF32 switched off": (lambda: env(FINE, NVIDIA_TF32_OVERRIDE="0"), "tf32-switched-off", ("unset NVIDIA_TF32_OVERRIDE",)),
    "NCCL without peer copies": (
        lambda: scripted_machine(cards=("RTX 3090",) * 2, peers=P2P).but(environment={"NCCL_P2P_DISABLE": "1"}),
        "nccl-p2p-disabled",
        ("unset NCCL_P2P_DISABLE",),
    ),
}


@pytest.mark.parametrize("name", FAULTY)
def test_the_cause_is_named_first_with_what_mends_it(name: str) -> None:
    assert_cause(FAULTY[name])


HEALTHY: dict[str, Callable[[], ScriptedMachine]] = {
    "A100 in a container": lambda: container(
        scripted_machine(cards=("A100 SXM4 80GB",), answers=[torch("2.13.0+cu130", "13.0", CU130, devices=[(8, 0)])])
    ).without("/lib/modules"),
    "a CUDA build in a container of a machine without a GPU": lambda: container(
        scripted_machine(cards=(), driver=None, answers=[NONE_SEEN])
    ),
    "WSL": lambda: wsl(answers=[FINE]),
    "a container of Kubernetes with one card of eight": lambda: container(scripted_machine(answers=[FINE])).but(
        files={
            f"/sys/bus/pci/devices/0000:{i:02x}:00.0/{k}": v
            for i in range(2, 9)
            for k, v in (("class", "0x030200"), ("vendor", "0x10de"))
        },
        environment={"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
    ),
    "a CPU container on a machine with GPUs": lambda: without_nodes(answers=()),
    "docker without the toolkit": lambda: scripted_machine(answers=[FINE]).but(paths={"docker": "/usr/bin/docker"}),
    "a container with a small /dev/shm made larger": lambda: container(scripted_machine(answers=[FINE])).but(
        space={"/dev/shm": ROOM}
    ),
    "CUDA_VISIBLE_DEVICES with one card of two": lambda: env(FINE, cards=("RTX 4090",) * 2, CUDA_VISIBLE_DEVICES="1"),
    "CUDA_VISIBLE_DEVICES by the beginning of an identifier": lambda: env(FINE, CUDA_VISIBLE_DEVICES="GPU-00000000"),
    "no CPU quota": lambda: container(scripted_machine(cards=["H100 SXM"] * 4)).but(files=group("max 100000\n")),
    "NCCL without peer copies where the driver has none": lambda: scripted_machine(
        cards=("RTX 4090",) * 2, peers=[Peer(0, 1, "pcie host bridge", None, False)]
    ).but(environment={"NCCL_P2P_DISABLE": "1"}),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine_is_not_flagged(name: str) -> None:
    assert_healthy(HEALTHY[name])


def test_a_second_name_that_is_wrong_hides_the_rest_only() -> None:
    found = diagnose(env(FINE, cards=("RTX 4090",) * 2, CUDA_VISIBLE_DEVICES="0,7,1").look()).faults
    assert [(f.id, f.severity.value) for f in found] == [("cuda-visible-devices-invalid", "limit")]


def test_secrets_of_the_environment_are_not_looked_at() -> None:
    machine = env(FINE, NVIDIA_API_KEY="nvapi-123", NCCL_AUTH="x", NCCL_DEBUG="INFO").look()
    assert dict(machine.environment) == {"NCCL_DEBUG": "INFO"}


def test_docker_without_the_toolkit_is_a_note() -> None:
    found = diagnose(HEALTHY["docker without the toolkit"]().look())
    assert [f.id for f in found.notes] == ["docker-without-toolkit"]
    assert any("nvidia-ctk runtime configure" in c for m in found.notes[0].fixes for c in m.commands)


@pytest.mark.parametrize("text", ["{", "[]", '{"runtimes": []}', '{"runtimes": {"nvidia": 3}}', "\x00"])
def test_a_broken_docker_configuration_is_no_trouble(text: str) -> None:
    machine = scripted_machine(answers=[FINE]).but(files={"/etc/docker/daemon.json": text}, paths={"docker": "/usr/bin/docker"})
    assert diagnose(machine.look()).faults == ()


def test_the_python_of_the_environment_is_the_one_looked_at() -> None:
    from gpuwise.machine.doctor.probes.python import choose_python

    host = scripted_machine().but(environment={"VIRTUAL_ENV": "/venv"}, files={PYTHON: ""}).host
    assert choose_python(host, None) == PYTHON
    assert choose_python(host, "/opt/python") == "/opt/python"
