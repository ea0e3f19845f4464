"""nox sessions that test the package as a user installs it, on every supported Python version.

    nox                     smoke test on all installed interpreters
    nox -s smoke-3.13       smoke test on one of them
    nox -s tests-3.12       quick tests

Interpreters are taken from uv if it is installed (`uv python install 3.12 3.13`), else from PATH;
missing ones are skipped.
"""

import nox

PYTHONS = ("3.11", "3.12", "3.13")
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["smoke"]
nox.options.error_on_missing_interpreters = False


@nox.session(python=PYTHONS)
def smoke(session: nox.Session) -> None:
    """Build the wheel, install it without a compiler, print the version, and sample both media."""
    folder = session.create_tmp()
    session.install("build")
    session.run("python", "-m", "build", "--wheel", "--outdir", folder, silent=True)
    session.install("--find-links", folder, "onepass", env={"CC": "/bin/false"})
    session.chdir(folder)  # so nothing is imported from the source tree
    session.run("onepass", "--version")
    session.run("onepass", "sample", "shipped", "--seconds", "0.5", "--out", "out")
    session.run("onepass", "sample", "shipped-digits", "--num", "1", "--label", "7", "--out", "out")


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the quick tests; arguments after `--` replace the default arguments of pytest."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", *(session.posargs or ["-n", "3", "--dist", "loadfile"]))


@nox.session(python=PYTHONS[0])
def docs(session: nox.Session) -> None:
    """Build the documentation; a warning is an error."""
    session.install("-e", ".[docs]")
    session.run("mkdocs", "build", "--strict")
