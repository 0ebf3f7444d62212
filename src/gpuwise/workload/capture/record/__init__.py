"""A captured step as columns: operations, storages, modules, and edits of them."""
