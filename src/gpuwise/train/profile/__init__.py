"""Profiles of training steps: traces read into columns, the step split into parts, wastes found and priced."""
