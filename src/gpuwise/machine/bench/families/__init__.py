"""The families of ``gpuwise bench``, one module each."""
