"""A machine's own measurements turned into corrections of the kernel model."""
