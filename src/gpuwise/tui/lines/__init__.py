"""What the screen shows as lines of text runs. Pure; nothing of textual."""
