"""Operations of a capture: dispatch, kernels chosen, FLOP and bytes."""
