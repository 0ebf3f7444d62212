"""The contents of the screen as lines of text runs. Pure; does not need textual."""
