"""What work costs: rent, energy. It knows offers and hours, not how they came about."""
