"""For the tests of other programs: a driver library that plays any NVIDIA card."""
