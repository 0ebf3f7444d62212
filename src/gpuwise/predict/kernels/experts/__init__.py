"""Grouped products and fused expert layers (mixture of experts)."""
