"""Data parallelism, sharding and pipelines: what several ranks add to a step."""
