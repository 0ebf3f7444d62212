"""Terminal screens: thin shells over the library."""
