"""One file a kind of block that layers are made of: its parameters, rows, caches and what splits it over ranks."""
