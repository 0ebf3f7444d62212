"""How well a calibration of one machine would do, tried on published tables."""
