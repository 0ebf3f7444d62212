"""Fits of engines that serve language models and images."""
