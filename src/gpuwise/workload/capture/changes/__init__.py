"""Changes made to a person's step while it is captured."""
