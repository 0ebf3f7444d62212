"""Profiles of training steps: traces as columns, step time by part, findings with their cost."""
