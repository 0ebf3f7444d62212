"""A plan as files of the tools that people train with: each read back by the tool's own parser."""
