"""Numbers, figures and documents as people see them: SVG, HTML templates, plain words."""
