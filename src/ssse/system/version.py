"""The version of this package, which artefacts and pages name."""

__version__ = "0.1.0"
