"""Reports: figures as SVG and pages as self-contained HTML. No formula is in here."""
