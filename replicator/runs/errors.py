"""The one kind of error that the command line answers with a single line and exit status 2."""


class UserError(ValueError):
    """A mistake that its message explains to the person at the keyboard, in one line."""


def first_line(text: str) -> str:
    """The first line of an error of TensorFlow, of 200 characters at most."""
    return " ".join(text.split(".\n")[0].split("\n")[0].split())[:200]
