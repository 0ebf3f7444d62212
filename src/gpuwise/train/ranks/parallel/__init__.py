"""A model divided over ranks other than by its batch: tensor and pipeline parallel, shared rows; gradients in fewer bytes."""
