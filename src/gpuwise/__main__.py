"""``python -m gpuwise``: the command of the Python that runs it, where none or another's is on the path."""

from gpuwise.cli import main

if __name__ == "__main__":
    main()
