"""gpuwise's own version, for what any room writes: without the metadata of an installation, and without the public names."""

VERSION = "0.1.0"
"""As in pyproject.toml."""
