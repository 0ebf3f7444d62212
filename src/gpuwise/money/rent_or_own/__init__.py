"""Rent, own or mix for a demand in accelerator-hours."""
