"""The parts of each command's answer: names, which are options of the command, and what they show. Nothing is loaded here."""

from __future__ import annotations

from collections.abc import Mapping

PARTS: Mapping[str, Mapping[str, str]] = {
    "plan": {
        "gpus": "Where",
        "why": "Why, and what would change it",
        "step": "Where the time of a step goes",
        "changes": "What one change to the layout would do",
        "layout": "The layout",
        "numbers": "All numbers",
        "levels": "Training alone, at two levels",
        "memory": "What fills the memory",
        "layouts": "Other layouts",
        "run": "How to start it",
        "operations": "Operations of a step that cost most",
        "scaling": "On several GPUs, the same batch on each",
        "batches": "Batches that were tried",
        "findings": "Noticed in the step",
        "lines": "How each change is written",
    },
    "pick": {
        "ways": "The best of each way to have one",
        "otherwise": "Otherwise",
        "table": "All that were ranked",
        "how": "How the best of each way does it",
        "why-not": "Why not",
        "order": "How they are ranked",
    },
    "compare": {
        "short": "Side by side",
        "also": "Also",
        "rows": "Every figure",
        "sources": "Where the figures are from",
    },
    "capacity": {
        "ranked": "What carries it for least",
        "miss": "The nearest miss",
        "changes": "What one change would bring",
        "latency": "Latency of one replica",
        "rates": "As the rate of one replica rises",
        "limits": "What is full first",
        "fleet": "The fleet",
        "minute": "A simulated minute",
        "front": "Throughput against interactivity",
        "start": "Start a replica",
        "prove": "Prove it",
    },
    "fit": {
        "uses": "What you can do with it",
        "formats": "Formats of weights, and what each costs",
        "speeds": "How fast, by tokens of context",
        "changes": "What would change it",
        "start": "What starts it",
        "ways": "What makes it fit",
        "memory": "What fills the memory",
        "step": "Where the time of a step goes",
        "tried": "Each change alone",
        "gpus": "Bigger GPUs, and more of these",
        "batches": "Batches that were tried",
        "findings": "Noticed in the step",
        "lines": "How each change is written",
    },
    "profile": {
        "parts": "The step in parts",
        "findings": "What to fix; savings overlap",
        "fixes": "How each is fixed",
        "slower": "Operations slower than this device can run them",
        "ranks": "Ranks",
    },
    "op": {
        "devices": "Each device",
    },
    "memory": {
        "step": "Memory over the recorded history",
        "settings": "Other allocator settings, replayed",
        "gaps": "Reserved memory when most is reserved",
        "pinned": "Segments with most room that cannot be given back",
    },
    "cost own": {
        "ways": "Every way to get the hours",
        "steps": "What each cost component changes, alone and together",
        "drivers": "What drives it, each alone from its 10th to its 90th percentile",
        "energy": "Electricity at the meter and carbon over the whole time",
        "time": "Spending over time, rental prices to come, how many to own",
        "assumptions": "Assumptions, with their ranges and sources",
    },
    "cost run": {
        "bill": "The bill",
        "changes": "What would change it",
        "power": "Power while training; energy of the whole run",
        "stops": "Stops and checkpoints",
        "published": "Published runs",
    },
}
"""By command: name and title of each part."""
