"""timm's image-network benchmarks: rows, fit, score."""
