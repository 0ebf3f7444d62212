"""What accelerators cost to rent and to buy, and what providers charge beside them."""
