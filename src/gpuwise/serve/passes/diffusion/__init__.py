"""Diffusion models for images and video: networks, and the seconds of a generation."""
