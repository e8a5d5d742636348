"""Errors that are for people: one line, the value, and what to do."""


class InputError(ValueError):
    """A setting, a name or a data set that cannot be used as given."""


class ResultsError(RuntimeError):
    """A results folder that cannot be used: locked, made with another config, or not writable."""


def shown(value):
    """A value in a sentence: as Python writes it, cut where it is long."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # too many digits to be written
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def require(ok, message):
    """Raise `InputError(message)` unless `ok`; line breaks in quoted values become spaces.

    A comparison with nan is false, so `require(x > 0, ...)` refuses nan as well.
    """
    if not ok:
        raise InputError(" ".join(message.split()))
