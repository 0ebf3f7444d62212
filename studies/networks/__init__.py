"""Networks that public benchmarks measure, built without weights or data."""
