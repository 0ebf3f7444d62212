"""One interface to the hardware: every vendor's library, and a scripted device, return the same readings."""
