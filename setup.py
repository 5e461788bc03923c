"""Compile the message catalogs when the package is built or installed (see pyproject.toml)."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

CATALOGS = Path(__file__).parent / "qkv" / "locale"


def compile_catalogs() -> None:
    """Write each .po file as the .mo file that gettext reads."""
    from babel.messages.mofile import write_mo
    from babel.messages.pofile import read_po

    for source in CATALOGS.rglob("*.po"):
        with source.open("rb") as po, source.with_suffix(".mo").open("wb") as mo:
            write_mo(mo, read_po(po))


class BuildWithCatalogs(build_py):
    """Also runs for editable installs, which then have the catalogs in the source tree."""

    def run(self) -> None:
        compile_catalogs()
        super().run()


setup(cmdclass={"build_py": BuildWithCatalogs})
