"""The one kind of error that the command line answers with a single line and exit status 2."""


class UserError(ValueError):
    """A mistake that its message explains to the person at the keyboard, in one line."""
