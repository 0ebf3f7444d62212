"""What was measured, on what, when: one SQLite file, written so that a dying process loses nothing it had measured."""
