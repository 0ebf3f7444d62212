"""Published serving runs: rows, fit, score."""
