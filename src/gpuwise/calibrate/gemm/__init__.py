"""Matrix products: rows, fit, score."""
