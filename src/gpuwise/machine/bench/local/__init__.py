"""``gpuwise validate --local``: real training steps on this machine against their prediction."""
