"""Which folders are packages: everything else about the project is in pyproject.toml.

The folders are mapped into one package, so that a wheel claims no name but ``sterna``.
setuptools finds packages by itself only where folder and name agree, so they are listed here;
a new folder needs no entry.
"""

from setuptools import find_packages, setup

TOPS = ("cli", "export", "hw", "model", "sim")

setup(
    packages=["sterna", *(f"sterna.{name}" for top in TOPS
                          for name in (top, *(f"{top}.{inner}" for inner in find_packages(top))))],
    package_dir={"sterna": "root", **{f"sterna.{top}": top for top in TOPS}},
)
