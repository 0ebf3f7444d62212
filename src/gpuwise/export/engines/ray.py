"""A job for a Ray cluster: one task a node, each with all its GPUs, starts ``train.sh`` there.

For Ray 2.60: parsed as Python here, not run.
"""

from __future__ import annotations

from gpuwise.export.engines.start import Start

VERSION = "Ray 2.60"
COMMAND = ("ray", "job", "submit", "--working-dir", ".", "--", "python", "ray_job.py")
_DRIVER = '''"""{title} {command}"""

import os
import subprocess

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

NODES, GPUS = {nodes}, {gpus}


@ray.remote(num_cpus=1, num_gpus=GPUS)
class Node:
    def address(self):
        return ray.util.get_node_ip_address()

    def train(self, rank, head):
        """The exit status of train.sh, which finds its files where Ray unpacked them."""
        return subprocess.run(["bash", "train.sh"], env={{**os.environ, "HEAD_NODE": head, "NODE_RANK": str(rank)}}).returncode


def main():
    ray.init()
    group = placement_group([{{"CPU": 1, "GPU": GPUS}}] * NODES, strategy="STRICT_SPREAD")
    ray.get(group.ready())
    places = [PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank) for rank in range(NODES)]
    nodes = [Node.options(scheduling_strategy=place).remote() for place in places]
    head = ray.get(nodes[0].address.remote())
    ended = ray.get([node.train.remote(rank, head) for rank, node in enumerate(nodes)])
    raise SystemExit(max(map(abs, ended)))


if __name__ == "__main__":
    main()
'''


def driver(start: Start) -> dict[str, str]:
    """Entry point of ``ray job submit``."""
    of = start.job
    return {"ray_job.py": _DRIVER.format(title=start.title, command=" ".join(COMMAND), nodes=of.n_nodes, gpus=of.gpus_per_node)}


def notes(start: Start) -> tuple[str, ...]:
    """Requirements on the cluster."""
    return (f"{start.tool.version} has to be on the nodes of the cluster: {start.tool.setup}",)
