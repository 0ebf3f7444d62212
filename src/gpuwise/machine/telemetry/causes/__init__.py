"""What holds a device back, as rules over frames."""
