"""The commands in a browser, on this machine only: questions in, the documents of ``--json`` out. No formula is in here."""
