"""Finds the packages; all else that is installed stands in pyproject.toml."""

from setuptools import find_packages, setup

# Folders without code are packages as well: the samples, and the records, which pyproject.toml maps
# to their folder.
DATA = ["ed_lib.samples", "ed_lib.recorded"]

setup(packages=[*find_packages(include=["ed_lib*"]), *DATA])
