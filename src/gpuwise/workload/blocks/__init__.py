"""Blocks of layers, one file per kind: parameters, rows, caches, and how ranks split them."""
