"""What every test shares: no clock in a verdict (hypothesis deadlines are timed assertions)."""

from hypothesis import settings

settings.register_profile("gpuwise", deadline=None)
settings.load_profile("gpuwise")
