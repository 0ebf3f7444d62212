"""The analytic front end: a transformer's dimensions to rows of the step table."""
