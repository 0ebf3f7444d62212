"""Where a training step's time goes, and what each cause costs: traces read, the step split, wastes named."""
