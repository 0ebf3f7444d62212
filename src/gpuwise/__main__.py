"""``python -m gpuwise``: the command for the current Python, if it is not on the path or another's is."""

from gpuwise.cli import main

if __name__ == "__main__":
    main()
