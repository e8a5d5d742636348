"""The ledger of a study: one file that says what all runs on the same owners have spent.

Every fit that lets something cross is one line, written before the fit starts: a checksum over the
line and the checksum before it, and what the fit spends at most. Lines are only added. Tables and
fits have names by a key in a file beside it: without the key a name tells nothing of the rows.
"""

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from math import isfinite
from pathlib import Path

from filelock import FileLock

from mpmtl.errors import InputError, require
from mpmtl.experiments.commands import command_parser
from mpmtl.experiments.layout import one_line, table_text
from mpmtl.privacy.spending import Spent, in_words, pair_of
from mpmtl.privacy.statements import MARK_WORDS, mark

ENTRY = {"id", "data", "run", "stated", "spent", "caveats"}


@dataclass(frozen=True)
class Account:
    """Where a run is charged, and what all runs there may spend together.

    Attributes
    ----------
    path : str or None
        Ledger; None: nothing is charged.
    total : float or None
        Largest epsilon of all fits in the ledger together; None: no limit.
    delta : float or "auto"
        At which the total holds; auto: the delta of the run.
    """

    path: str | None = None
    total: float | None = None
    delta: float | str = "auto"

    def __post_init__(self):
        require(
            self.path is None or (isinstance(self.path, str) and self.path),
            f"ledger.path = {self.path}: give the name of a file",
        )
        require(
            self.total is None or self.path,
            f"ledger.total = {self.total} needs ledger.path, the file that says what is spent",
        )
        for key, most in (("total", float("inf")), ("delta", 1.0)):
            value = getattr(self, key)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            default = value is None if key == "total" else value == "auto"
            require(
                default or (number and 0 < value < most),
                f"ledger.{key} = {value} must be above 0" + " and below 1" * (key == "delta"),
            )


def _checksum(before, text):
    return hashlib.sha256(f"{before} {text}".encode()).hexdigest()[:32]


def key_of(path):
    """The secret of a ledger, 32 bytes in ``<path>.key``, which is made where there is none.

    With another one, fits that were charged before are charged again.

    Raises
    ------
    InputError
        One line for a damaged one.
    """
    path = Path(f"{path}.key")
    if not path.exists():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{secrets.token_hex(32)}\n")
    text = path.read_text(encoding="utf-8", errors="replace").strip()
    require(
        re.fullmatch("[0-9a-f]{64}", text),
        f"{path} is damaged: restore it from a copy, or delete it (then what is in the ledger is "
        "charged again where it is run again)",
    )
    return bytes.fromhex(text)


def keyed(key, text):
    """The name of a fit or a table in a ledger: HMAC-SHA256 under its key, 16 digits."""
    return hmac.new(key, text.encode(), "sha256").hexdigest()[:16]


def entries_of(path):
    """Entries of a ledger, each checked against the chain of checksums.

    A last line without its end is a charge that was cut off: its run has not started.

    Returns
    -------
    entries : list of dict
    checksum : str
        Of the last line.
    length : int
        Bytes of whole lines.

    Raises
    ------
    InputError
        One line, if a line was changed, moved or removed.
    """
    path, entries, checksum, length = Path(path), [], "", 0
    content = path.read_bytes() if path.exists() else b""
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            break
        stated, _, text = line.decode(errors="replace").rstrip("\n").partition(" ")
        checksum = _checksum(checksum, text)
        try:
            require(stated == checksum, "the checksum is wrong")
            entry = json.loads(text)
            Spent.from_dict(entry["spent"])
            require(entry.keys() >= ENTRY, "something is missing")
        except (InputError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path}, line {number}: this line or one before it was changed or removed, so "
                "what is spent is not known: restore the file from a copy"
            ) from error
        entries.append(entry)
        length += len(line)
    return entries, checksum, length


def total_of(entries: Sequence[dict]):
    """What all entries spend together."""
    return sum((Spent.from_dict(entry["spent"]) for entry in entries), Spent())


def charge(account, new, delta):
    """Enter what is about to be spent; entries whose id is there already are paid for.

    Parameters
    ----------
    account : Account
    new : list of dict
        Each with what `ENTRY` names, `spent` as `Spent.as_dict`, and more that is worth knowing; id
        and data are `keyed` in the file.
    delta : float
        Of the run, where the account has none.

    Raises
    ------
    InputError
        One line, if all together would spend more than the account's total; nothing is entered.
    """
    path, at = Path(account.path), delta if account.delta == "auto" else account.delta
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        entries, checksum, length = entries_of(path)
        key = key_of(path)
        new = [e | {name: keyed(key, e[name]) for name in ("id", "data")} for e in new]
        known = {entry["id"] for entry in entries}
        new = [entry for entry in new if entry["id"] not in known]
        before = total_of(entries)
        after = before + total_of(new)
        if account.total is not None and new:
            require(
                after.epsilon(at) <= account.total,
                f"{path}: {_epsilon_words(before, at)} is spent of ledger.total = "
                f"{account.total:g} at delta = {at:.3g}, and this run would make it "
                f"{_epsilon_words(after, at)}: a smaller epsilon or fewer replicates, or another "
                "study",
            )
        lines, now = [], datetime.now(UTC).isoformat(timespec="seconds")
        for entry in new:
            text = json.dumps({"when": now, **entry}, separators=(",", ":"))
            checksum = _checksum(checksum, text)
            lines.append(f"{checksum} {text}\n")
        if lines:
            with path.open("r+b" if path.exists() else "w+b") as file:
                file.truncate(length)
                file.seek(length)
                file.write("".join(lines).encode())
                file.flush()
                os.fsync(file.fileno())


def _epsilon_words(spent, delta):
    epsilon = spent.epsilon(delta)
    return f"{epsilon:.4g}" if isfinite(epsilon) else "unlimited (nothing is proved at that delta)"


def _pair_words(spent, delta, mark):
    pair = pair_of(spent, delta)
    return f"({pair[0]:.4g}, {pair[1]:.3g}){mark}" if pair else "-"


def table(entries, delta):
    """Lines of text: each run, each data set, and all together."""
    rows = []
    for run, group in groupby(entries, key=lambda entry: (entry["run"], entry["data"])):
        group = list(group)
        one = Spent.from_dict(group[0]["spent"])
        marked = mark(group[0]["caveats"])
        each, together = (_pair_words(spent, delta, marked) for spent in (one, total_of(group)))
        words = {"run": run[0], "data": run[1][:8], "fits": str(len(group))}
        rows.append(words | {"each": each, "together": together})
    lines = table_text(rows, right=("fits",)).splitlines()
    data = sorted({entry["data"] for entry in entries})
    if len(data) > 1:
        for name in data:
            own = [entry for entry in entries if entry["data"] == name]
            lines.append(f"data {name[:8]}: {in_words(total_of(own), len(own), delta)}")
    words = in_words(total_of(entries), len(entries), delta)
    lines.append(
        f"the study: {words} (unit: a task; neighbours replace its model and data in all fits)"
    )
    return lines + [one_line(MARK_WORDS)] * any(mark(entry["caveats"]) for entry in entries)


def _run(options):
    require(Path(options.ledger).is_file(), f"{options.ledger}: there is no such ledger")
    entries, delta = entries_of(options.ledger)[0], options.delta
    if not entries:
        print(f"{options.ledger}: nothing is spent")
        return
    if delta is None:
        delta = min((e["stated"][1] for e in entries if e["stated"][1] > 0), default=1e-5)
    require(0 < delta < 1, f"--delta = {delta} must be above 0 and below 1")
    print("\n".join(table(entries, delta)))


def main():
    """Entry point of `mpmtl-ledger`; exit code 2 for bad input or a changed ledger."""
    parser = command_parser(
        "mpmtl-ledger",
        "What all runs of a study have spent on the same owners, by exact composition.",
    )
    parser.add_argument("ledger", help="the file that ledger.path of mpmtl-run names")
    parser.add_argument(
        "--delta",
        type=float,
        help="at which epsilon is asked; default: the smallest that a run has stated",
    )
    _run(parser.parse_args())
