"""What the doctor reads of a machine."""
