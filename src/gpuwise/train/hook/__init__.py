"""Watching a script that was not written for us: its steps found, its phases timed, nothing of it edited."""
