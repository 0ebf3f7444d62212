"""Training on ranks with torch.distributed's own parts: DDP, FSDP2, torchrun."""
