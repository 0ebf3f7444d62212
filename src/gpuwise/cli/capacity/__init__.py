"""``gpuwise capacity``: which GPUs, how many, at what latency and price, to serve this load?"""
