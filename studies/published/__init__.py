"""Published training benchmarks of whole systems."""
