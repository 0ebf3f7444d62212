"""Answers about a person's own step: does it fit, how long does it take."""
