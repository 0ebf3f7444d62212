"""Writers of the reference pages and of the page of claims."""
