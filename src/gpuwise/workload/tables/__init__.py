"""Training steps of networks by name: tables of operations written from captures (``studies/training_tables``)."""
