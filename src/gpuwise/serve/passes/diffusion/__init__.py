"""Makers of images and video: their networks, and the seconds of a generation."""
