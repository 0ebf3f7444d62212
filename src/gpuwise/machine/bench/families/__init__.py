"""What ``gpuwise bench`` measures, one module a family."""
