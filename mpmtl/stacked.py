"""One table of all tasks, or one table for each: rows by task, columns by name, two labels."""

import numpy as np

from mpmtl.errors import InputError, require


def as_given(X):
    """What is no array and no list, but can be made an array, as that; anything else as it is."""
    made = hasattr(X, "__array__") and not hasattr(X, "__len__")
    return np.asarray(X) if made else X


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


def numbers_of(rows, where):
    """One task's table as it is, if its form can be that of a table of real numbers.

    What stands in its cells is not looked at.

    Raises
    ------
    InputError
        If it is sparse, complex, no table, or has no column.
    """
    require(not hasattr(rows, "toarray"), f"{where}: X is sparse: give a dense table, X.toarray()")
    try:
        shape = rows.shape if hasattr(rows, "shape") else np.shape(rows)
    except ValueError as error:
        raise InputError(f"{where}: the rows of X differ in length") from error
    if not hasattr(rows, "columns"):
        kind = np.asarray(rows).dtype.kind
        require(kind != "c", f"{where}: Complex data not supported: give real numbers")
    require(
        len(shape) == 2,
        f"{where}: X must be a table, and its shape is {tuple(shape)}. Reshape your data: "
        "X.reshape(-1, 1) for one feature, X.reshape(1, -1) for one row",
    )
    require(
        shape[1] > 0,
        f"{where}: X has 0 feature(s) (shape={tuple(shape)}) while a minimum of 1 is required: "
        "give it columns",
    )
    return rows


def targets_of(y, where):
    """One task's targets, shape (n,); a table with one column is taken as that.

    Raises
    ------
    InputError
        If they are a table with more columns, or complex.
    """
    try:
        y = np.asarray(y)
    except ValueError as error:
        raise InputError(f"{where}: targets must be one number or label each") from error
    require(y.dtype.kind != "c", f"{where}: Complex data not supported: give real targets")
    require(
        y.ndim == 1 or (y.ndim == 2 and y.shape[1] == 1),
        f"{where}: y must have one target for each row, and its shape is {y.shape}",
    )
    return y.reshape(-1)


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
    count, numbers = len(labels), labels.dtype.kind == "f"
    continuous = numbers and np.isfinite(labels).all() and (labels % 1).any()
    require(
        count == 2,
        "Only binary classification is supported: y has "
        f"{count} class{'es' * (count != 1)}, {labels[:5].tolist()}"
        f"{', and looks continuous: MultiTaskRegressor is for that' * bool(continuous)}",
    )
    return labels


def signs(target, classes):
    """Labels as -1 and 1; NaN for what is neither of the two classes."""
    target = np.ravel(np.asarray(target))
    return np.where(target == classes[1], 1.0, np.where(target == classes[0], -1.0, np.nan))
