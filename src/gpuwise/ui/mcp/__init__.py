"""The questions as tools of an agent: the Model Context Protocol over stdio or loopback HTTP."""
