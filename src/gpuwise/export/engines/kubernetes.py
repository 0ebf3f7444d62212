"""Pods for Kubernetes: an indexed Job, with its GPUs by claim (DRA), in a queue of Kueue or by the scheduler of Run:ai; a JobSet,
a TrainJob of Kubeflow. Read by kubernetes-validate 1.37 (``batch/v1``, ``resource.k8s.io/v1``) and by the resource definitions
of JobSet v1alpha2 and of Kubeflow Trainer v1alpha1, unknown fields refused."""

from __future__ import annotations

from typing import Any

from gpuwise.export.engines import containers
from gpuwise.export.engines.start import STORAGE, Start
from gpuwise.export.torchrun import MOST_RESTARTS
from gpuwise.export.yaml import to_yaml

JOB = "Kubernetes 1.37"
JOBSET = "JobSet v1alpha2"
TRAINJOB = "Kubeflow Trainer v1alpha1"
DRA = "Kubernetes 1.37, resource.k8s.io/v1"
KUEUE = "Kueue 0.14"
RUNAI = "Run:ai 2.21"
QUEUE, PROJECT = "QUEUE", "PROJECT"
DEVICE_CLASS = "gpu.nvidia.com"
"""Whole GPUs, in the DRA driver of NVIDIA."""
_CLAIM = "gpus"
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_START = "exec ./train.sh"


def image(start: Start) -> str:
    """Registry name of the image built from the Dockerfile beside it."""
    return f"REGISTRY/{start.job.name}:1"


def _environment(start: Start, head: str) -> list[dict[str, object]]:
    if start.job.n_nodes == 1:
        return []
    return [{"name": "HEAD_NODE", "value": head}, {"name": "NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": INDEX}}}]


def _volumes() -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Mounts, and what is mounted: shared memory for the loaders' batches, and the claim."""
    mounts: list[dict[str, object]] = [{"name": "memory", "mountPath": "/dev/shm"}, {"name": "storage", "mountPath": STORAGE}]
    memory: dict[str, object] = {"name": "memory", "emptyDir": {"medium": "Memory"}}
    return mounts, [memory, {"name": "storage", "persistentVolumeClaim": {"claimName": "CLAIM"}}]


def _job(start: Start, head: str) -> dict[str, Any]:
    """``spec`` of a Job whose pods are the nodes. A pod that was moved away does not count as failed."""
    of = start.job
    mounts, volumes = _volumes()
    container: dict[str, Any] = {"name": "train", "image": image(start), "command": ["bash", "-c", _START]}
    container |= {"env": _environment(start, head), "ports": [{"containerPort": 29500}]}
    container |= {"resources": {"limits": {"nvidia.com/gpu": of.gpus_per_node}}, "volumeMounts": mounts}
    pod: dict[str, Any] = {"restartPolicy": "Never", "terminationGracePeriodSeconds": start.grace_s}
    pod |= {"containers": [container], "volumes": volumes}
    failure_rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
    job_spec = {"completions": of.n_nodes, "parallelism": of.n_nodes, "completionMode": "Indexed"}
    return {
        **job_spec,
        "backoffLimit": MOST_RESTARTS * of.n_nodes,
        "podFailurePolicy": {"rules": failure_rules},
        "template": {"metadata": {"labels": {"app": of.name}}, "spec": pod},
    }


def _documents(start: Start) -> list[dict[str, Any]]:
    """The service by which the pods of several nodes find the first, and last the Job."""
    of = start.job
    spec = _job(start, f"{of.name}-0.{of.name}")
    documents: list[dict[str, Any]] = []
    if of.n_nodes > 1:
        spec["template"]["spec"]["subdomain"] = of.name
        service_spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": of.name}}
        documents.append({"apiVersion": "v1", "kind": "Service", "metadata": {"name": of.name}, "spec": service_spec})
    return [*documents, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": of.name}, "spec": spec}]


def _files(start: Start, documents: list[dict[str, Any]]) -> dict[str, str]:
    text = "---\n".join([to_yaml(documents[0], start.title), *(to_yaml(d) for d in documents[1:])])
    return {"Dockerfile": containers.dockerfile(start), "job.yaml": text}


def job(start: Start) -> dict[str, str]:
    """A Job and its service."""
    return _files(start, _documents(start))


def dra(start: Start) -> dict[str, str]:
    """A Job whose pods claim their GPUs from a DRA driver (dynamic resource allocation) in place of a device plugin's count."""
    documents = _documents(start)
    pod = documents[-1]["spec"]["template"]["spec"]
    name = f"{start.job.name}-{_CLAIM}"
    pod["containers"][0]["resources"] = {"claims": [{"name": _CLAIM}]}
    pod["resourceClaims"] = [{"name": _CLAIM, "resourceClaimTemplateName": name}]
    exactly = {"deviceClassName": DEVICE_CLASS, "allocationMode": "ExactCount", "count": start.job.gpus_per_node}
    claim = {"spec": {"devices": {"requests": [{"name": _CLAIM, "exactly": exactly}]}}}
    template = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": claim}
    return _files(start, [template, *documents])


def kueue(start: Start) -> dict[str, str]:
    """A Job that waits, suspended, until Kueue admits all its pods together."""
    documents = _documents(start)
    documents[-1]["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": QUEUE}
    documents[-1]["spec"]["suspend"] = True
    return _files(start, documents)


def runai(start: Start) -> dict[str, str]:
    """A Job of a Run:ai project, placed by Run:ai's scheduler."""
    documents = _documents(start)
    for document in documents:
        document["metadata"]["namespace"] = f"runai-{PROJECT}"
    documents[-1]["spec"]["template"]["spec"]["schedulerName"] = "runai-scheduler"
    return _files(start, documents)


def jobset(start: Start) -> dict[str, str]:
    """A JobSet: when one pod fails for good, all start again together, from the last checkpoint."""
    of = start.job
    spec = _job(start, f"{of.name}-node-0-0.{of.name}")
    spec["backoffLimit"] = 0
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": of.name},
        "spec": {
            "failurePolicy": {"maxRestarts": MOST_RESTARTS},
            "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": spec}}],
        },
    }
    return {"Dockerfile": containers.dockerfile(start), "jobset.yaml": to_yaml(manifest, start.title)}


def trainjob(start: Start) -> dict[str, str]:
    """A TrainJob on the runtime ``torch-distributed``, which names the nodes in variables of torchrun's own."""
    of = start.job
    mounts, volumes = _volumes()
    words = f"HEAD_NODE=$PET_MASTER_ADDR NODE_RANK=$PET_NODE_RANK {_START}"
    trainer: dict[str, Any] = {"image": image(start), "command": ["bash", "-c", words], "numNodes": of.n_nodes}
    trainer |= {"numProcPerNode": of.gpus_per_node, "resourcesPerNode": {"limits": {"nvidia.com/gpu": of.gpus_per_node}}}
    pod = {
        "terminationGracePeriodSeconds": start.grace_s,
        "volumes": volumes,
        "containers": [{"name": "node", "volumeMounts": mounts}],
    }
    inner = {"spec": {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": {"spec": pod}}}}]}}
    spec = {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer}
    spec["runtimePatches"] = [{"manager": "gpuwise.dev/export", "trainingRuntimeSpec": {"template": inner}}]
    manifest = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": of.name}, "spec": spec}
    return {"Dockerfile": containers.dockerfile(start), "trainjob.yaml": to_yaml(manifest, start.title)}


def notes(start: Start) -> tuple[str, ...]:
    """Settings that depend on the cluster."""
    return (
        *containers.notes(start.job),
        f"build and push the image, with your registry in place of REGISTRY: docker build --tag {image(start)} .",
        f"CLAIM stands for a volume claim that all nodes may write; it is {STORAGE} in every pod",
        "a network of its own between the nodes (RDMA) is asked for as your cluster has it",
    )


def dra_notes(start: Start) -> tuple[str, ...]:
    """Settings that depend on the cluster."""
    return (*notes(start), f"the cluster needs a DRA driver with the device class {DEVICE_CLASS}")


def kueue_notes(start: Start) -> tuple[str, ...]:
    """Settings that depend on the cluster."""
    return (*notes(start), f"{QUEUE} stands for a LocalQueue of the namespace: kubectl get localqueues")


def runai_notes(start: Start) -> tuple[str, ...]:
    """Settings that depend on the cluster."""
    return (*notes(start), f"{PROJECT} stands for your Run:ai project")
