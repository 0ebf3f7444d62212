"""Device memory of measured jobs: rows, fit, score."""
