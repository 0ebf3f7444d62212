"""Documents of ``--json`` as HTML and SVG: for the pages of ``gpuwise ui``, for files of their own, for notebooks.

Every number that is shown stands in a ``data`` element with its value and where it is in the document. Nothing is computed but
where to draw.
"""
