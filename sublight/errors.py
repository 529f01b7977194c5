"""What went wrong with the user's input: one sentence that says expected, got, where and what to do."""


class InputError(Exception):
    """An input that cannot be used. The command line prints it as one line and exits with 2."""
