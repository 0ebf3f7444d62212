"""Coefficients fitted from measurements, and predictions scored against them."""
