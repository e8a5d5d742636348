"""Errors that are for people: one line, the value, and what to do."""


class InputError(ValueError):
    """A setting, a name or a data set that cannot be used as given."""


class ResultsError(RuntimeError):
    """A results folder that cannot be used: locked, made with another config, or not writable."""


def require(ok, message):
    """Raise `InputError(message)` unless `ok`; line breaks in quoted values become spaces.

    A comparison with nan is false, so `require(x > 0, ...)` refuses nan as well.
    """
    if not ok:
        raise InputError(" ".join(message.split()))
