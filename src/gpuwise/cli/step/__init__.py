"""``fit`` and ``plan`` on a person's own code."""
