"""The version of this package, which artefacts and pages name."""

__version__ = "0.2.0"
