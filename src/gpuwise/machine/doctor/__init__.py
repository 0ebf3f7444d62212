"""Is this machine ready, and if not, what exactly mends it? ``probe`` looks, ``diagnose`` judges, ``report`` tells."""
