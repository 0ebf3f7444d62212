"""``gpuwise validate --local``: real runs on this machine beside their prediction."""
