"""Terminal screens over the library."""
