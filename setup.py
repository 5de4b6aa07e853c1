"""Finds the packages; all else that is installed stands in pyproject.toml."""

from setuptools import find_packages, setup

# The records are a package as well, which pyproject.toml maps to their folder.
setup(packages=[*find_packages(include=["ed_lib*"]), "ed_lib.recorded"])
