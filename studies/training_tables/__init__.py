"""Tables of operations of networks that are trained by name: written from captures, shipped as data."""
