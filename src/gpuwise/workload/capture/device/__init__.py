"""The pretended accelerator: what a program that runs on it sees."""
