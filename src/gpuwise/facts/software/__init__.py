"""What software runs on which device and driver."""
