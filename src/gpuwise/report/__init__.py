"""Answers drawn: figures as SVG and pages as self-contained HTML. No formula lives here."""
