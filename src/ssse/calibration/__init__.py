"""Choosing ε and λ by evidence, and looking along a step."""
