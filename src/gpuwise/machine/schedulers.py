"""The nodes of a scheduler as a cluster that questions are about (``--on slurm:gpu``).

A name is ``slurm[:PARTITION[:TYPE]]`` or ``k8s[:LABEL=VALUE][:TYPE]``, with a number of GPUs before it and, after ``@``, a
file with what the scheduler printed (``slurm:gpu@nodes.txt``): the output of ``scontrol --oneliner show nodes``, ``scontrol show
nodes --json``, ``sinfo --json`` or ``kubectl get nodes -o json``. Without a file the scheduler is asked.
:mod:`gpuwise.facts.hardware.scheduled` is where the name is recognised.

Formats: the manual pages of Slurm 24.11 (scontrol, sinfo, gres.conf) and NodeList of Kubernetes v1; names of GPUs are those of
gres.conf's ``Type`` and of the labels of NVIDIA's GPU feature discovery, AMD's node labeller and GKE.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuwise.errors import AmbiguousNameError, FileError, GpuwiseError, InputError, UnknownNameError
from gpuwise.facts.hardware.instances import named_instance
from gpuwise.facts.hardware.naming import USUAL, find_accelerator, find_cluster
from gpuwise.facts.hardware.scheduled import SCHEDULED
from gpuwise.facts.hardware.systems import Cluster, with_host_memory
from gpuwise.files import parse_json, read_text
from gpuwise.units import GIB, KIB, MIB, TIB

FORM = "write slurm:PARTITION, slurm:PARTITION:TYPE, k8s, k8s:LABEL=VALUE or k8s:LABEL=VALUE:TYPE"
_SLURM, _KUBERNETES = "slurm", "k8s"
_GRES = re.compile(r"gpu(?::([^:(,]+))??(?::no_consume)?(?::(\d+))?(?:\([^)]*\))?")
_SLICE = re.compile(r"\d+g\.\d+gb|mig-", re.IGNORECASE)
_AWAY = ("DOWN", "DRAIN", "FAIL", "FUTURE", "MAINT", "NOT_RESPONDING", "NO_RESPOND", "UNKNOWN", "INVALID")
"""States of a node on which no job starts; ``POWERED_DOWN`` begins none of them: the node is started for a job."""
_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/xe", "gpu.intel.com/i915")
_PRODUCTS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
)
_INSTANCES = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_SHARED = re.compile(r"-SHARED$", re.IGNORECASE)


COMMANDS = {"slurm": ("scontrol", "--oneliner", "show", "nodes"), "k8s": ("kubectl", "get", "nodes", "-o", "json")}
PATIENCE_S = 30.0
"""A controller that is busy answers within seconds."""
FRESH_S = 30.0
"""A question names the nodes several times; a server asks again."""
_answers: dict[str, tuple[float, str]] = {}


@dataclass(frozen=True, slots=True)
class Node:
    """``many`` equal nodes as their scheduler describes them."""

    name: str
    gpu: str
    """Type as the scheduler spells it; empty where it states none."""
    count: int
    """GPUs of one node."""
    groups: tuple[str, ...]
    """Partitions, or labels as ``key=value``."""
    host_memory_bytes: float | None = None
    away: str = ""
    """Why no job starts there, as the scheduler calls it; empty where jobs start."""
    hints: tuple[str, ...] = ()
    """Words that may name the GPU where ``gpu`` is empty: features, the cloud's instance type."""
    many: int = 1


def scheduled_cluster(text: str) -> Cluster:
    """The GPUs that jobs can start on in the part of a scheduler that ``text`` names: of nodes with unlike counts, those with the
    most GPUs together. ``assumption`` states what was left out.

    Raises InputError where the scheduler is not here or does not answer, no node has GPUs, or their types differ; FileError for a
    file that is no such output; UnknownNameError for a partition, a label or a type that no node has, and for a GPU that is not
    in the catalogue.
    """
    match = SCHEDULED.fullmatch(text)
    if match is None:
        raise InputError(f"{text!r} names no scheduler", hint=FORM)
    kind = _SLURM if match[2].lower() == _SLURM else _KUBERNETES
    group, type_ = _selected(kind, match[3] or "", text)
    file = match[4] and match[4].strip()
    nodes = read_nodes(kind, read_text(Path(file)) if file else nodes_of(kind), file or "")
    return _cluster_of(nodes, kind, group, type_, None if match[1] is None else int(match[1]))


def _selected(kind: str, words: str, text: str) -> tuple[str, str]:
    """Partition or label, and type; empty for all."""
    parts = [part.strip() for part in words.split(":")] if words.strip() else [""]
    if kind == _KUBERNETES and "=" not in parts[0]:
        parts = ["", *filter(None, parts)]
    if len(parts) > 2:
        raise InputError(f"{text!r} has {len(parts)} parts after the scheduler", hint=FORM)
    return parts[0], parts[1] if len(parts) > 1 else ""


def read_nodes(kind: str, text: str, file: str = "") -> list[Node]:
    """The nodes in what the scheduler ``kind`` printed. Raises FileError naming ``file``."""
    where = file or ("scontrol show nodes" if kind == _SLURM else "kubectl get nodes -o json")
    try:
        if kind == _KUBERNETES:
            return [*_kubernetes(parse_json(text, file=where))]
        if text.lstrip().startswith("{"):
            return [*_slurm_json(parse_json(text, file=where))]
        return [*_slurm_text(text)]
    except (AttributeError, KeyError, TypeError, ValueError):
        pass
    made = "`kubectl get nodes -o json`" if kind == _KUBERNETES else "`scontrol --oneliner show nodes`, or with --json"
    raise FileError("does not list nodes", file=where, hint=f"save the output of {made}")


def _slurm_text(text: str) -> Iterator[Node]:
    """Nodes of ``scontrol show nodes``, a line each or a block each."""
    blocks = re.split(r"(?m)^(?=NodeName=)", text)
    if not any(block.startswith("NodeName=") for block in blocks):
        raise ValueError
    for block in blocks:
        fields = dict(re.findall(r"(\w+)=(\S*)", block))
        if "NodeName" in fields:
            features = fields.get("ActiveFeatures", "").replace("(null)", "")
            yield from _of_gres(
                fields["NodeName"],
                fields.get("Gres", ""),
                [] if fields.get("Partitions") is None else fields["Partitions"].split(","),
                float(fields["RealMemory"]) if fields.get("RealMemory", "").isdigit() else None,
                fields.get("State", "UNKNOWN").replace("*", "+NOT_RESPONDING"),
                _words(features),
            )


def _slurm_json(document: Any) -> Iterator[Node]:
    """Nodes of ``scontrol show nodes --json`` and of ``sinfo --json``."""
    if "sinfo" in document:
        yield from _sinfo(document["sinfo"])
        return
    for n in document["nodes"]:
        state = "+".join([*_words(n["state"]), *_words(n.get("state_flags"))]).upper()
        yield from _of_gres(
            n["name"], n.get("gres") or "", _words(n["partitions"]), n.get("real_memory"), state, _words(n.get("active_features"))
        )


def _sinfo(rows: Sequence[Mapping[str, Any]]) -> Iterator[Node]:
    """Nodes of ``sinfo --json``, whose rows are equal nodes of a partition: rows of the same nodes are one."""
    partitions: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        partitions.setdefault(tuple(row["nodes"]["nodes"]), []).append(row["partition"]["name"])
    seen: set[tuple[str, ...]] = set()
    for row in rows:
        names = tuple(row["nodes"]["nodes"])
        if names not in seen:
            seen.add(names)
            state = "+".join(_words(row["node"]["state"])).upper()
            features = _words(row.get("features", {}).get("active"))
            found = _of_gres(",".join(names), row["gres"]["total"], partitions[names], row["memory"]["minimum"], state, features)
            yield from (replace(node, many=int(row["nodes"]["total"])) for node in found)


def _words(value: Any) -> list[str]:
    """A list, or text with commas, as Slurm's releases differ."""
    return [w for w in value.split(",") if w] if isinstance(value, str) else [*map(str, value or ())]


def _of_gres(name: str, gres: str, groups: Sequence[str], memory_mib: Any, state: str, features: Sequence[str]) -> Iterator[Node]:
    """A node for each type of GPU of ``gres``; one without GPUs where there is none."""
    types: Counter[str] = Counter()
    for part in re.findall(r"[^,(]+(?:\([^)]*\))?", gres):
        if (match := _GRES.fullmatch(part.strip())) is not None:
            type_ = match[1] or ""
            types["" if type_.isdigit() else type_] += int(match[2] or (type_ if type_.isdigit() else 1))
    away = next((word for word in state.split("+") if word.startswith(_AWAY)), "")
    memory = None if not isinstance(memory_mib, (int, float)) or memory_mib <= 1 else float(memory_mib) * MIB
    for type_, count in types.items() or (("", 0),):
        yield Node(name, type_, count, tuple(groups), memory, away.lower().replace("_", " "), tuple(features))


def _kubernetes(document: Any) -> Iterator[Node]:
    """Nodes of a NodeList."""
    for n in document["items"]:
        labels: dict[str, str] = n["metadata"].get("labels") or {}
        room: dict[str, str] = n["status"].get("allocatable") or n["status"].get("capacity") or {}
        product = next((labels[key] for key in _PRODUCTS if labels.get(key)), "")
        count = max((int(room[key]) for key in _RESOURCES if str(room.get(key, "")).isdigit()), default=0)
        if _SHARED.search(product) and labels.get("nvidia.com/gpu.replicas", "").isdigit():
            count //= max(int(labels["nvidia.com/gpu.replicas"]), 1)
        slices = sum(int(v) for key, v in room.items() if key.startswith("nvidia.com/mig-") and str(v).isdigit())
        if slices and not count:
            product, count = "mig-slices", slices
        ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in n["status"].get("conditions") or ())
        away = "" if ready else "not ready"
        away = "cordoned" if n.get("spec", {}).get("unschedulable") else away
        hints = [labels[key] for key in _INSTANCES if labels.get(key)]
        groups = tuple(f"{key}={value}" for key, value in labels.items())
        yield Node(n["metadata"]["name"], _SHARED.sub("", product), count, groups, _bytes(room.get("memory")), away, tuple(hints))


_SUFFIXES = {"Ki": KIB, "Mi": MIB, "Gi": GIB, "Ti": TIB, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def _bytes(quantity: Any) -> float | None:
    """A quantity of Kubernetes (``2113530Ki``) in bytes; None for another text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]i|[kMGT]|)", str(quantity or ""))
    return None if match is None else float(match[1]) * _SUFFIXES[match[2]]


def _cluster_of(nodes: Sequence[Node], kind: str, group: str, type_: str, asked: int | None) -> Cluster:
    """The cluster of ``asked`` GPUs (None: all) of the nodes of ``group`` and ``type_``."""
    what = "partition" if kind == _SLURM else "label"
    inside = [n for n in nodes if not group or group in n.groups]
    with_gpus = sorted({g for n in nodes if _is_whole(n) for g in n.groups}) if kind == _SLURM else []
    where = f"partitions with GPUs: {', '.join(with_gpus)}" if with_gpus else "name the GPUs, like --on 4x8xH100-SXM"
    if not inside:
        raise UnknownNameError(
            what, group, (), hint=where if kind == _SLURM else "`kubectl get nodes --show-labels` lists the labels"
        )
    place = f"{what} {group}" if group else {"slurm": "Slurm", "k8s": "Kubernetes"}[kind]
    whole = [n for n in inside if _is_whole(n)]
    if not whole:
        missing = "only slices of GPUs (MIG)" if any(n.count for n in inside) else "no GPUs"
        raise InputError(f"the nodes of {place} have {missing}", hint=where)
    ready = [n for n in whole if not n.away]
    if not ready:
        states = ", ".join(dict.fromkeys(n.away for n in whole))
        raise InputError(
            f"{place}: no job starts on its nodes with GPUs ({states})", hint="ask for another part, or for GPUs by name"
        )
    types = dict.fromkeys(_type_of(n) for n in ready)
    chosen = [n for n in ready if not type_ or _same(_type_of(n), type_)]
    if not chosen:
        raise UnknownNameError("type of GPU", type_, types, hint=f"{place} has {', '.join(filter(None, types))}")
    if len(kinds := dict.fromkeys(_type_of(n) for n in chosen)) > 1:
        counts = [f"{sum(n.many * n.count for n in chosen if _type_of(n) == k)}x {k or 'of no type'}" for k in kinds]
        one = f"{kind}:{group}:{next(filter(None, kinds))}" if group or kind == _SLURM else f"{kind}:{next(filter(None, kinds))}"
        raise InputError(f"{place} has unlike GPUs: {', '.join(counts)}", hint=f"name one type: --on {one}")
    return _equal(chosen, place, sum(n.many for n in whole) - sum(n.many for n in ready), asked)


def _is_whole(node: Node) -> bool:
    """Whether it has GPUs that are not sliced."""
    return node.count > 0 and not _SLICE.search(node.gpu)


def _same(type_: str, asked: str) -> bool:
    """Whether two spellings mean one GPU."""
    return type_.lower() == asked.lower() or _id(type_) == _id(asked) != ""


def _id(type_: str) -> str:
    """The catalogue's name of a type; empty where it has none."""
    try:
        return find_accelerator(type_, USUAL).id if type_ else ""
    except GpuwiseError:
        return ""


def _type_of(node: Node) -> str:
    """The type that the scheduler states, else the one of its hints that names a GPU or an instance; empty without one."""
    if node.gpu:
        return node.gpu
    named = [word for word in node.hints if word and (_id(word) or named_instance(word) is not None)]
    return named[0] if len(named) == 1 else ""


def _equal(nodes: Sequence[Node], place: str, n_away: int, asked: int | None) -> Cluster:
    """The nodes of the GPUs per node that are the most GPUs, as a cluster."""
    type_ = _type_of(nodes[0])
    totals: Counter[int] = Counter()
    for n in nodes:
        totals[n.count] += n.many * n.count
    per_node, most = max(totals.items(), key=lambda item: (item[1], item[0]))
    equal = [n for n in nodes if n.count == per_node]
    n_nodes = most // per_node
    if not type_:
        raise InputError(
            f"{place}: {_nodes(n_nodes)} of {per_node} GPUs, whose type it does not state",
            hint=f"name it: --on {n_nodes}x{per_node}xH100-SXM, or set Type= in gres.conf",
        )
    if asked is not None and asked > most:
        raise InputError(f"{place} has {most} GPUs of {type_} in equal nodes, not {asked}", hint=f"ask for up to {most}")
    gpus = most if asked is None else asked
    cluster = _found(type_, gpus, min(per_node, gpus), place)
    left = [f"{_nodes(n_away)} where no job starts"] * bool(n_away)
    left += [f"{_nodes(sum(n.many for n in nodes if n.count == k))} of {k}" for k in totals if k != per_node]
    said = f"{place} has {_nodes(n_nodes)} of {per_node} {type_}" + (f", and not counted {', '.join(left)}" if left else "")
    memory = [n.host_memory_bytes for n in equal if n.host_memory_bytes is not None]
    if memory and not cluster.system.accelerator.unified_memory:
        cluster = with_host_memory(cluster, min(memory))
    return replace(cluster, assumption="; ".join(filter(None, (said, cluster.assumption))))


def _nodes(n: int) -> str:
    return "1 node" if n == 1 else f"{n} nodes"


def _found(type_: str, gpus: int, per_node: int, place: str) -> Cluster:
    """``gpus`` of ``type_`` in nodes of ``per_node``."""
    if gpus % per_node:
        raise InputError(f"{gpus} GPUs do not fill nodes of {per_node}", hint=f"ask for a multiple of {per_node}")
    if named_instance(type_) is not None:
        return find_cluster(f"{gpus // per_node}x{type_}")
    try:
        return find_cluster(f"{gpus // per_node}x{per_node}x{type_}", prefer=USUAL)
    except AmbiguousNameError as error:
        names = [name.rpartition("x")[2] if "x" in name else name for name in error.candidates]
        raise InputError(
            f"{place}: its GPUs are called {type_!r}, which may be {', '.join(names[:4])}",
            hint=f"name them: --on {gpus // per_node}x{per_node}x{names[0]}",
        ) from None
    except UnknownNameError as error:
        raise UnknownNameError(
            "accelerator",
            type_,
            (),
            hint=f"{place} calls its GPUs so; name them as `gpuwise gpus` does: --on {gpus // per_node}x{per_node}xNAME"
            + (f" ({error.hint})" if error.hint else ""),
        ) from None


def nodes_of(scheduler: str) -> str:
    """The output of the command of ``scheduler``, at most :data:`FRESH_S` old. Raises InputError where it fails."""
    asked_s, text = _answers.get(scheduler, (0.0, ""))
    if text and time.monotonic() - asked_s < FRESH_S:
        return text
    _answers[scheduler] = (time.monotonic(), _run(COMMANDS[scheduler], scheduler))
    return _answers[scheduler][1]


def _run(command: tuple[str, ...], scheduler: str) -> str:
    written = " ".join(command)
    program = shutil.which(command[0])
    if program is None:
        raise InputError(
            f"{command[0]} is not on this machine",
            hint=f"save what `{written}` prints on another, and name the file: --on {scheduler}@FILE",
        )
    try:
        ran = subprocess.run(
            [program, *command[1:]], capture_output=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"`{written}` gave no answer in {PATIENCE_S:.0f} s", hint="run it by itself to see why") from None
    except OSError as error:
        raise InputError(f"{program} does not start: {error.strerror}", hint="run it by itself to see why") from None
    if ran.returncode:
        lines = ran.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise InputError(f"`{written}` failed: {lines[-1][:200]}", hint="run it by itself to see why")
    return ran.stdout.decode(errors="replace")
