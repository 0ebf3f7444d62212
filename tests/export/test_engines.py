"""What starts a tool on its nodes: each file read by the engine's own parser or schema, and back into nodes and GPUs.

``GPUWISE_SCHEMAS`` names a folder with the resource definitions of JobSet and of Kubeflow's TrainJob, and with SkyPilot's schema.
"""

from __future__ import annotations

import ast
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuwise.errors import InputError
from gpuwise.export.engines import containers, kubernetes, skypilot
from gpuwise.export.job import Job
from gpuwise.export.targets import ENGINES, TOOLS, find_target, gaps_of, tool_of, write
from gpuwise.export.tool import Tool
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.workload.strategy import Strategy

Jobs = Callable[..., Iterator[Job]]
Files = list[tuple[Job, Mapping[str, str]]]
STACKS = ("megatron-core", "compiled-fsdp", "trainer", "hf-fsdp", "deepspeed")
N = 200
"""Jobs drawn."""
DEEP = 8
"""Files given to the slower of the validators."""
EIGHT, NODES = find_model("llama-3.1-8b"), find_cluster("2x8xH100-SXM")
PLAN = Job(EIGHT, NODES, Strategy(dp=16, sharding="zero1"), 4096, step_time_s=7.0)


@pytest.fixture(scope="module")
def planned(jobs: Jobs) -> list[tuple[Job, Tool]]:
    """Jobs with their tools, all of which every engine can start."""
    found: list[tuple[Job, Tool]] = []
    for stack in STACKS:
        tool = tool_of(stack)
        assert tool is not None
        able = (job for job in jobs(stack, 800) if not gaps_of(job, tool))
        found += [(job, tool) for job in itertools.islice(able, N // len(STACKS))]
    assert len(found) == N
    return found


@pytest.fixture(scope="module")
def made(planned: list[tuple[Job, Tool]]) -> Callable[[str], Files]:
    """The files of ``engine`` for each, the tool's own among them."""

    def files(engine: str) -> Files:
        found: Files = []
        for job, tool in planned:
            inside = replace(job, output="/storage/out") if ENGINES[engine].keeps else job
            written, inner = write(job, tool, ENGINES[engine]), tool.write(inside)
            assert {name: written.files[name] for name in inner.files} == inner.files
            found.append((job, written.files))
        return found

    return files


def _documents(text: str) -> list[dict[str, Any]]:
    yaml: Any = pytest.importorskip("yaml")
    return list(yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def _schema(name: str) -> Any:
    folder = os.environ.get("GPUWISE_SCHEMAS")
    if not folder or not (Path(folder) / name).is_file():
        pytest.skip(f"GPUWISE_SCHEMAS names no folder with {name}")
    return _documents((Path(folder) / name).read_text())[0]


def _unknown(value: Any, schema: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """Fields that a definition does not have, which a server drops in silence."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    if isinstance(value, dict) and "properties" in schema:
        for key, item in value.items():
            if key not in schema["properties"]:
                yield f"{at}.{key}"
            else:
                yield from _unknown(item, schema["properties"][key], f"{at}.{key}")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _unknown(item, schema.get("items", {}), f"{at}[{i}]")


def _of_definition(document: dict[str, Any], file: str) -> None:
    jsonschema: Any = pytest.importorskip("jsonschema")
    [version] = _schema(file)["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    jsonschema.Draft202012Validator(schema).validate(document)
    # every object has these of the server's own
    assert not list(_unknown({k: v for k, v in document.items() if k != "metadata"}, schema))


def _same(document: Any, model: Any) -> None:
    """Nothing is dropped by the models of the server's own package."""
    back = model.from_dict(document).to_dict()
    left = list(_lost(document, back))
    assert not left


def _lost(given: Any, back: Any, at: str = "") -> Iterator[str]:
    if isinstance(given, dict) and isinstance(back, dict):
        for key, item in given.items():
            if key not in back:
                yield f"{at}.{key}"
            else:
                yield from _lost(item, back[key], f"{at}.{key}")
    elif isinstance(given, list):
        for i, (a, b) in enumerate(zip(given, back, strict=True)):
            yield from _lost(a, b, f"{at}[{i}]")


def _pod(spec: Mapping[str, Any]) -> tuple[int, int]:
    """Nodes and GPUs of a Job."""
    [container] = spec["template"]["spec"]["containers"]
    return spec["parallelism"], container["resources"]["limits"]["nvidia.com/gpu"]


def _bash(text: str) -> None:
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


@pytest.mark.thorough
def test_a_job_of_kubernetes_is_read_back(made: Callable[[str], Files]) -> None:
    models: Any = pytest.importorskip("kubeflow_trainer_api.models")
    for job, files in made("kubernetes"):
        *service, read = _documents(files["job.yaml"])
        assert _pod(read["spec"]) == (job.n_nodes, job.gpus_per_node) and read["spec"]["completions"] == job.n_nodes
        assert len(service) == (job.n_nodes > 1)
        _same(read, models.IoK8sApiBatchV1Job)
        for one in service:
            _same(one, models.IoK8sApiCoreV1Service)
            assert one["spec"]["selector"] == read["spec"]["template"]["metadata"]["labels"]


@pytest.mark.thorough
def test_claims_queues_and_projects_are_read_back(made: Callable[[str], Files]) -> None:
    models: Any = pytest.importorskip("kubeflow_trainer_api.models")
    for job, files in made("dra"):
        claim, *_, read = _documents(files["job.yaml"])
        [request] = claim["spec"]["spec"]["devices"]["requests"]
        assert request["exactly"] == {
            "deviceClassName": "gpu.nvidia.com",
            "allocationMode": "ExactCount",
            "count": job.gpus_per_node,
        }
        pod = read["spec"]["template"]["spec"]
        assert pod["resourceClaims"] == [{"name": request["name"], "resourceClaimTemplateName": claim["metadata"]["name"]}]
        assert pod["containers"][0]["resources"] == {"claims": [{"name": request["name"]}]}
        assert read["spec"]["parallelism"] == job.n_nodes
        _same(read, models.IoK8sApiBatchV1Job)
    for job, files in made("kueue"):
        read = _documents(files["job.yaml"])[-1]
        assert _pod(read["spec"]) == (job.n_nodes, job.gpus_per_node) and read["spec"]["suspend"] is True
        assert read["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": kubernetes.QUEUE}
    for job, files in made("runai"):
        documents = _documents(files["job.yaml"])
        assert _pod(documents[-1]["spec"]) == (job.n_nodes, job.gpus_per_node)
        assert documents[-1]["spec"]["template"]["spec"]["schedulerName"] == "runai-scheduler"
        assert {d["metadata"]["namespace"] for d in documents} == {f"runai-{kubernetes.PROJECT}"}


@pytest.mark.parametrize("engine", ["kubernetes", "dra", "kueue", "runai"])
def test_kubernetes_takes_a_job(made: Callable[[str], Files], engine: str) -> None:
    validate: Any = pytest.importorskip("kubernetes_validate")
    for _, files in itertools.islice(made(engine), 0, N, N // DEEP):
        for document in _documents(files["job.yaml"]):
            if engine == "runai":  # a name has no capitals: what is filled in stands there
                document["metadata"]["namespace"] = document["metadata"]["namespace"].lower()
            validate.validate(document, "1.37", strict=True)


def test_a_jobset_is_read_back(made: Callable[[str], Files]) -> None:
    models: Any = pytest.importorskip("kubeflow_trainer_api.models")
    for job, files in made("jobset"):
        [read] = _documents(files["jobset.yaml"])
        [nodes] = read["spec"]["replicatedJobs"]
        assert _pod(nodes["template"]["spec"]) == (job.n_nodes, job.gpus_per_node)
        _same(read, models.JobsetV1alpha2JobSet)


def test_a_trainjob_is_read_back(made: Callable[[str], Files]) -> None:
    models: Any = pytest.importorskip("kubeflow_trainer_api.models")
    for job, files in made("trainjob"):
        [read] = _documents(files["trainjob.yaml"])
        trainer = read["spec"]["trainer"]
        assert (trainer["numNodes"], trainer["numProcPerNode"]) == (job.n_nodes, job.gpus_per_node)
        _same(read, models.TrainerV1alpha1TrainJob)


@pytest.mark.parametrize(
    ("engine", "file", "definition"),
    [("jobset", "jobset.yaml", "jobset_crd.yaml"), ("trainjob", "trainjob.yaml", "trainjob_crd.yaml")],
)
def test_definitions_know_every_field(made: Callable[[str], Files], engine: str, file: str, definition: str) -> None:
    for _, files in itertools.islice(made(engine), 0, N, N // DEEP):
        [read] = _documents(files[file])
        _of_definition(read, definition)


def test_skypilot_reads_its_task_back(made: Callable[[str], Files]) -> None:
    found = made("skypilot")
    for job, files in found:
        [read] = _documents(files["sky.yaml"])
        [(name, count)] = read["resources"]["accelerators"].items()
        assert (read["num_nodes"], count, name) == (
            job.n_nodes,
            job.gpus_per_node,
            skypilot.NAMES[job.cluster.accelerator.id],
        )
        _bash(read["run"])
        _bash(read["setup"])
    jsonschema: Any = pytest.importorskip("jsonschema")
    schemas = _schema("skypilot_0.14.1_schemas.json")
    for _, files in found:
        [read] = _documents(files["sky.yaml"])
        jsonschema.Draft202012Validator(schemas["task"]).validate(read)
        jsonschema.Draft202012Validator(schemas["resources"]).validate(read["resources"])


def test_compose_reads_its_file_back(made: Callable[[str], Files]) -> None:
    compose: Any = pytest.importorskip("compose_spec")
    for job, files in made("compose"):
        compose.PyCompose.from_yaml(files["compose.yaml"])
        service = _documents(files["compose.yaml"])[0]["services"]["train"]
        [gpus] = service["deploy"]["resources"]["reservations"]["devices"]
        assert gpus["count"] in ("all", job.gpus_per_node)
        assert (gpus["count"] == "all") == (job.gpus_per_node == job.cluster.system.count)


def test_a_dockerfile_has_every_file_and_no_finding(made: Callable[[str], Files], tmp_path: Path) -> None:
    lint = shutil.which("hadolint")
    seen: set[str] = set()
    for job, files in made("docker"):
        image = containers.image_of(job)
        lines = files["Dockerfile"].splitlines()
        assert image is not None and f"FROM {image.name}" in lines
        [copied] = [line.split()[1:-1] for line in lines if line.startswith("COPY")]
        assert set(copied) == set(files) - {"Dockerfile", "docker.sh"}
        _bash(files["docker.sh"])
        seen.add("\n".join(lines[1:]))
    if lint is not None:
        for text in seen:
            (tmp_path / "Dockerfile").write_text(text)
            done = subprocess.run([lint, tmp_path / "Dockerfile"], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout


def test_slurm_asks_for_the_nodes(made: Callable[[str], Files]) -> None:
    for job, files in made("slurm"):
        text = files["job.sbatch"]
        asked = dict(line[8:].split("=", 1) for line in text.splitlines() if line.startswith("#SBATCH") and "=" in line)
        assert (int(asked["--nodes"]), int(asked["--gpus-per-node"])) == (job.n_nodes, job.gpus_per_node)
        assert asked["--ntasks-per-node"] == "1"
        _bash(text)
        _bash(files["train.sh"])
        assert ("$HEAD_NODE" in files["train.sh"]) == (job.n_nodes > 1)


def test_a_driver_of_ray_is_python(made: Callable[[str], Files]) -> None:
    for job, files in made("ray"):
        tree = ast.parse(files["ray_job.py"])
        [sizes] = [n for n in tree.body if isinstance(n, ast.Assign)]
        assert ast.literal_eval(sizes.value) == (job.n_nodes, job.gpus_per_node)


def test_the_image_fits_the_driver() -> None:
    def name(gpus: str, driver: str | None) -> str | None:
        cluster = find_cluster(gpus)
        image = containers.image_of(Job(EIGHT, cluster, Strategy(dp=cluster.n_accelerators), 4096, driver=driver))
        return image and image.name

    assert name("8xH100-SXM", None) == name("8xH100-SXM", "590.44") == "nvcr.io/nvidia/pytorch:25.12-py3"
    assert name("8xH100-SXM", "550.54.14") == "nvcr.io/nvidia/pytorch:24.05-py3"
    assert name("8xA100-80GB", "520.61") == "nvcr.io/nvidia/pytorch:22.11-py3"
    assert name("v100-sxm-16gb", None) == "nvcr.io/nvidia/pytorch:24.05-py3"
    assert name("8xB200", "570.86") is None and name("8xH100-SXM", "470.57") is None and name("8xMI300X", None) is None


def test_what_an_engine_has_not_is_named() -> None:
    amd = Job(EIGHT, find_cluster("8xMI300X"), Strategy(dp=8, sharding="zero1"), 4096)
    for engine in ("docker", "kubernetes", "skypilot"):
        with pytest.raises(InputError, match="an image of NVIDIA's"):
            write(amd, TOOLS["megatron"], ENGINES[engine])
    assert "--gpus-per-node=8" in write(amd, TOOLS["megatron"], ENGINES["slurm"]).files["job.sbatch"]
    with pytest.raises(InputError, match="has no setting for"):
        write(PLAN, TOOLS["torchtitan"], ENGINES["slurm"])


def test_an_engine_starts_the_tool_that_is_named() -> None:
    assert find_target("slurm:torchtitan", "megatron-core") == (TOOLS["torchtitan"], ENGINES["slurm"])
    assert find_target("slurm", "deepspeed") == (TOOLS["deepspeed"], ENGINES["slurm"])
    assert find_target(None, "megatron-core") == (TOOLS["megatron"], None)
    for name in ("slrum", "slurm:megatorn", "torchtitan:slurm", "slurm:slurm"):
        with pytest.raises(InputError, match="unknown target"):
            find_target(name, "megatron-core")


def test_pods_have_time_to_save() -> None:
    read = _documents(write(PLAN, TOOLS["megatron"], ENGINES["kubernetes"]).files["job.yaml"])[-1]
    assert read["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 2 * 7 + 240
    assert kubernetes.INDEX in json.dumps(read)
