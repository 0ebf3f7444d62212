"""Frames as CSV lines, Prometheus metrics and a Grafana dashboard."""
