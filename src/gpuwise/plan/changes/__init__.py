"""What makes a step fit or run faster."""
