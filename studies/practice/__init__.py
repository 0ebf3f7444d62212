"""What published runs took over the tuned level: rows, fit, score."""
