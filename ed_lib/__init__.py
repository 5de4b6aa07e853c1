"""The implementations behind the book, one package per part, on a small ground floor."""

__version__ = "0.3.0"
