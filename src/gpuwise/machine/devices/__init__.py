"""One seam to the hardware: every vendor's library, and a device that does not exist, answer in the same words."""
