"""Launchers of a training tool on its nodes: Docker, Slurm, Kubernetes, SkyPilot and Ray around the tool's own ``train.sh``."""
