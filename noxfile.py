"""Sessions of nox: the package as a user gets it, on every Python that it supports.

    nox                     smoke, on the interpreters that are there
    nox -s smoke-3.13       one of them
    nox -s tests-3.12       the quick tests

Interpreters come from uv where it is installed (`uv python install 3.12 3.13`), else from PATH; one
that is nowhere is skipped.
"""

import nox

PYTHONS = ("3.11", "3.12", "3.13")
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["smoke"]
nox.options.error_on_missing_interpreters = False


@nox.session(python=PYTHONS)
def smoke(session: nox.Session) -> None:
    """The wheel, built and installed without a compiler: help, a sound, an image."""
    folder = session.create_tmp()
    session.install("build")
    session.run("python", "-m", "build", "--wheel", "--outdir", folder, silent=True)
    session.install("--find-links", folder, "onepass", env={"CC": "/bin/false"})
    session.chdir(folder)  # so that nothing is imported from the sources
    session.run("onepass", "--version")
    session.run("onepass", "sample", "shipped", "--seconds", "0.5", "--out", "out")
    session.run("onepass", "sample", "shipped-digits", "--num", "1", "--label", "7", "--out", "out")


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """The quick tests; words after `--` go to pytest."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", *(session.posargs or ["-n", "3", "--dist", "loadfile"]))


@nox.session(python=PYTHONS[0])
def docs(session: nox.Session) -> None:
    """The pages, without a warning."""
    session.install("-e", ".[docs]")
    session.run("mkdocs", "build", "--strict")
