"""Control groups: the tightest limit up the tree, of both versions, and the containers that groups name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.machine.devices.control_groups import Limits, engines_of, find_container, read_limits

BASE = "/sys/fs/cgroup"
OWN = "/proc/self/cgroup"
ID = "3f2a9c11d0e4" + "0" * 52

V2 = {
    OWN: "0::/pod/box\n",
    f"{BASE}/cgroup.controllers": "cpu memory",
    f"{BASE}/pod/box/cpu.max": "max 100000\n",
    f"{BASE}/pod/cpu.max": "250000 100000\n",
    f"{BASE}/pod/box/memory.max": "max\n",
    f"{BASE}/pod/memory.max": "8589934592\n",
    f"{BASE}/pod/memory.current": "4096\n",
}
V1 = {
    OWN: "5:cpu,cpuacct:/docker/x\n3:memory:/docker/x\n",
    # in a container the group's own folder is the base: the path is the host's
    f"{BASE}/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
    f"{BASE}/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    f"{BASE}/memory/memory.limit_in_bytes": "1073741824\n",
    f"{BASE}/memory/memory.usage_in_bytes": "5\n",
}
NO_LIMIT_V1 = {f"{BASE}/memory/memory.limit_in_bytes": "9223372036854771712\n", f"{BASE}/cpu,cpuacct/cpu.cfs_quota_us": "-1\n"}


@pytest.mark.parametrize(
    ("files", "limits"),
    [
        (V2, Limits(2, 2.5, 2**33, 4096)),
        (V2 | {f"{BASE}/pod/box/cpu.max": "150000 100000\n"}, Limits(2, 1.5, 2**33, 4096)),
        ({**V2, OWN: "0::/\n", f"{BASE}/cpu.max": "50000 100000"}, Limits(2, 0.5, None, None)),
        ({OWN: "0::/\n"}, Limits()),
        (V1, Limits(1, 0.5, 2**30, 5)),
        (V1 | NO_LIMIT_V1, Limits(1, None, None, None)),
        (V1 | {f"{BASE}/memory/docker/x/memory.limit_in_bytes": "4096"}, Limits(1, 0.5, 4096, None)),
        ({}, Limits()),
    ],
)
def test_the_tightest_limit_up_the_tree(files: dict[str, str], limits: Limits) -> None:
    assert read_limits(files.get) == limits


@given(st.dictionaries(st.sampled_from([*V2, *V1]), st.text(max_size=40) | st.sampled_from(list(V2.values())), max_size=8))
def test_a_limit_is_above_nothing_whatever_the_files_say(files: dict[str, str]) -> None:
    limits = read_limits(files.get)
    assert limits.cpus is None or limits.cpus >= 0
    assert limits.memory_bytes is None or limits.memory_bytes >= 0


@pytest.mark.parametrize(
    ("cgroup", "container", "engines"),
    [
        ("0::/user.slice/user-1000.slice/session-2.scope", None, ()),
        ("0::/", None, ()),
        ("0::/system.slice/docker.service", None, ()),
        ("0::/system.slice/lxcfs.service", None, ()),
        (f"0::/system.slice/docker-{ID}.scope", "docker 3f2a9c11d0e4", ("docker",)),
        (f"0::/system.slice/docker.service/docker/{ID}", "docker 3f2a9c11d0e4", ("docker",)),
        (f"12:pids:/docker/{ID}\n11:memory:/docker/{ID}", "docker 3f2a9c11d0e4", ("docker",)),
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-{ID}.scope",
            "containerd 3f2a9c11d0e4",
            ("containerd", "kubernetes"),
        ),
        (f"0::/kubepods/besteffort/pod12/{ID}", "kubernetes 3f2a9c11d0e4", ("kubernetes",)),
        (f"0::/machine.slice/libpod-{ID}.scope/container", "podman 3f2a9c11d0e4", ("podman", "nspawn")),
        ("0::/lxc/box", "lxc", ("lxc",)),
    ],
)
def test_containers(cgroup: str, container: str | None, engines: tuple[str, ...]) -> None:
    assert find_container(cgroup) == container and engines_of(cgroup) == engines
