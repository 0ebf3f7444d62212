"""Which accelerator for which job and purse: it ranks, compares and composes; time, memory and money come from the rooms
below."""
