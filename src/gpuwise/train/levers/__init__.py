"""What can be changed about an unmodified script while it runs."""
