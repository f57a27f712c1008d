"""The one exception that a user is meant to read."""


class UserError(ValueError):
    """Bad input. The message names the offending thing, what was expected and what to do.

    Command-line tools print it without a traceback and exit with status 2.
    """
