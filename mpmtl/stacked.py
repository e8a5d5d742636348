"""One table of all tasks, or one table for each: rows by task, columns by name, two labels."""

import numpy as np

from mpmtl.errors import InputError, require


def is_table(X):
    """Whether X is one table, a DataFrame or rows of numbers, and not one table for each task."""
    require(not hasattr(X, "toarray"), "X is sparse: give a dense table, X.toarray()")
    if hasattr(X, "columns"):
        return True
    if isinstance(X, np.ndarray) and X.dtype != object:
        return X.ndim < 3
    return len(X) > 0 and not hasattr(X[0], "columns") and np.ndim(X[0]) == 1


def rows_by_task(X, task):
    """The features of one table, and the task of each of its rows.

    Parameters
    ----------
    X : DataFrame or array, shape (n, d)
    task : str or array, shape (n,)
        The name of a column of X, or the labels themselves.

    Raises
    ------
    InputError
        If there is no such column, or not one label for each row.
    """
    require(is_table(X), "task is for one table with all tasks' rows, and X is a list of tables")
    if isinstance(task, str):
        require(
            task in getattr(X, "columns", ()),
            f"task = {task!r} is no column of X: give the name of one, or the task of each row",
        )
        X, task = X.drop(columns=task), X[task]
    labels = np.asarray(task)
    require(labels.shape == (len(X),), f"{labels.size} task labels for {len(X)} rows of X")
    missing = sum(label is None or label != label for label in labels.tolist())
    require(missing == 0, f"{missing} of {len(X)} rows have no task: drop them or name it")
    return X, labels


def distinct(labels, what):
    """The labels, sorted, and the place of each one given."""
    try:
        return np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise InputError(f"the {what} are of several types: make all of them text") from error


def taken(X, rows):
    """Rows of a table, by their places."""
    return X.iloc[rows] if hasattr(X, "columns") else np.asarray(X)[rows]


def names_of(X):
    """Names of the columns of a DataFrame; None where they are no text, or for an array."""
    names = list(getattr(X, "columns", ()))
    named = bool(names) and all(isinstance(name, str) for name in names)
    return np.array(names, dtype=object) if named else None


def matched(X, names):
    """A table with its columns in the order of `names`; an array, or None for `names`, as it is.

    Raises
    ------
    InputError
        If a column is missing, not known or there twice.
    """
    own = names_of(X)
    if names is None or own is None:
        return X
    twice = sorted({name for name in own if list(own).count(name) > 1})
    wrong = {
        "missing": [name for name in names if name not in own],
        "not known": [name for name in own if name not in names],
        "there twice": twice,
    }
    words = [f"{word} {', '.join(map(repr, some))}" for word, some in wrong.items() if some]
    require(not words, "the columns of X are not those of fit: " + "; ".join(words))
    return X[list(names)]


def two_classes(y):
    """The two labels in the targets of all tasks, sorted: the second counts as 1."""
    labels, _ = distinct(np.concatenate([np.ravel(target) for target in y]), "labels")
    require(
        len(labels) == 2,
        f"binary tasks need two classes, and y has {len(labels)}: {labels[:5].tolist()}",
    )
    return labels


def signs(target, classes):
    """Labels as -1 and 1; NaN for what is neither of the two classes."""
    target = np.ravel(np.asarray(target))
    return np.where(target == classes[1], 1.0, np.where(target == classes[0], -1.0, np.nan))
