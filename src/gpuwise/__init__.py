"""gpuwise: for any AI workload and any accelerator: does it fit, how fast is it, what does it cost, what should change."""

__version__ = "0.1.0"
