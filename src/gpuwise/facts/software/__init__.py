"""Software support by device and driver."""
