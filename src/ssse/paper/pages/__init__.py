"""A result on disk: numbers as JSON, figures as SVG, tables as Markdown, and one page with it all."""
