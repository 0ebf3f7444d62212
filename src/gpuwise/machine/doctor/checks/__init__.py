"""The doctor's checks, in the order of causes."""
