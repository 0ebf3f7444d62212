"""Strategies on hardware: their space and search, what makes them fit, and the answer in words."""
