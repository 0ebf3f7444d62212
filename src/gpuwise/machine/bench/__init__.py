"""Measurements on this machine. Imports torch, and only inside the functions that need it."""
