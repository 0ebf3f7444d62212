"""Expert layers: rows, fit, score."""
