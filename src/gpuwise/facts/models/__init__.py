"""Model architectures: dimensions, names, configuration files."""
