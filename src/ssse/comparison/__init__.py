"""Methods side by side on one's own model and data: what each does, and what it costs."""
