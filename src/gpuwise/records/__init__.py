"""Measurements of the user in one SQLite file; a process that dies loses nothing it had measured."""
