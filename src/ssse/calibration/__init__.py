"""Choosing ε and λ by evidence."""
