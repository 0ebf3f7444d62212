"""The space of strategies: its columns, its rules, its search."""
