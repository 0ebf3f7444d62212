"""Device memory: states, activations, workspaces, context."""
