"""Results folder of a run: journal, lock, manifest and tables.

The journal holds one line for each finished replicate and is the only file that is appended to. The
tables are written from it, each in one step, so a crash at any moment leaves a folder from which
the run goes on.
"""

import hashlib
import json
import os
import platform
import secrets
import shutil
import subprocess
import zlib
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pandas as pd
from filelock import FileLock, Timeout

from mpmtl import __version__
from mpmtl.errors import ResultsError

ROOT = Path(__file__).resolve().parents[1]
#: First columns of the tables; what else the rows have (settings, a mechanism's budget) follows.
COLUMNS = {
    "replicates": (
        "dataset",
        "method",
        "privacy",
        "epsilon",
        "delta",
        "replicate",
        "metric",
        "value",
    ),
    "cv": ("replicate", "candidate", "score", "chosen"),
    "trace": ("replicate", "round", "noise_norm", "signal_norm"),
    "timing": ("replicate", "seconds"),
    "owners": ("replicate", "task", "rows", "error", "stl"),
}
OPTIONAL = ("owners",)  # tables that are not there without rows
JOURNAL = "journal.jsonl"
TABLE = "table.sha256"  # digest of the owners' table, where the manifest must not have it
#: Folders whose files change no number, but for those named.
APART = {"experiments": {"config.py", "runner.py", "tuning.py", "audit.py"}, "paper": set()}


def code_digest(root):
    """Digest of those sources of a package below `root` that the numbers of a run depend on."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        folder, *rest = path.relative_to(root).parts
        if folder in APART and rest[0] not in APART[folder]:
            continue
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


@cache
def code_version():
    """Version of the package with a digest of its source, so that an edit counts as a change."""
    return f"{__version__}+{code_digest(ROOT)}"


def _git_state():
    """Commit of the checkout the code runs from, with `-dirty`; None outside a checkout."""
    command = ["git", "-C", str(ROOT.parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def environment():
    """Versions and thread limits, for the manifest."""
    packages = ("numpy", "scipy", "pandas", "hydra-core", "omegaconf", "joblib")
    threads = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "packages": {name: version(name) for name in packages},
        "threads": {name: os.environ.get(name) for name in threads},
        "git": _git_state(),
    }


def flat(settings, prefix=""):
    """Nested settings as one dict with keys like "dataset.used"."""
    values = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        values |= flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return values


def differences(old, new):
    """Settings that differ, as "key: old -> new"."""
    old, new = flat(old), flat(new)
    return [
        f"{key}: {old.get(key)} -> {new.get(key)}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]


#: End of the name of an experiment's manifest in a reference folder.
REFERENCE = ".manifest.json"


def reference_table(folder, experiment, name):
    """File of a table (replicates, cv, trace, bounds) in a reference folder."""
    return folder / f"{experiment}{'' if name == 'replicates' else f'_{name}'}.csv.gz"


def write_reference(folder, experiment, manifests, tables):
    """Write the runs of an experiment as one manifest and compressed tables.

    Parameters
    ----------
    folder : Path
    experiment : str
        Start of the files' names.
    manifests : list of dict
    tables : dict of str to DataFrame
        By the name they have in a run's folder; the column `run` counts the manifests.
    """
    texts = {}
    for manifest in manifests:
        texts |= manifest["privacy"]["caveats"]
    common, own = _split([_with_caveats(manifest, list) for manifest in manifests])
    first = json.dumps({"common": common, "caveats": texts}, indent=1).removesuffix("\n}")
    lines = ",\n".join(json.dumps(part) for part in own)
    write_atomic(folder / f"{experiment}{REFERENCE}", f'{first},\n "runs": [\n{lines}\n]}}\n')
    compression = {"method": "gzip", "compresslevel": 9, "mtime": 0}
    for name, table in tables.items():
        path = reference_table(folder, experiment, name)
        table.to_csv(path, index=False, compression=compression)


def reference_manifests(content):
    """The manifests of an experiment, from what `write_reference` wrote."""
    texts = content["caveats"]
    return [
        _with_caveats(_merged(content["common"], own), lambda codes: {c: texts[c] for c in codes})
        for own in content["runs"]
    ]


def _with_caveats(manifest, change):
    privacy = manifest["privacy"]
    return {**manifest, "privacy": {**privacy, "caveats": change(privacy["caveats"])}}


def _split(manifests):
    """What all manifests share, nested as they are, and what is left of each."""
    common, own = {}, [{} for _ in manifests]
    for key in dict.fromkeys(key for manifest in manifests for key in manifest):
        values = [manifest[key] for manifest in manifests if key in manifest]
        everywhere = len(values) == len(manifests)
        if everywhere and all(value == values[0] for value in values):
            common[key] = values[0]
        elif everywhere and all(isinstance(value, dict) for value in values):
            common[key], parts = _split(values)
            for rest, part in zip(own, parts, strict=True):
                rest |= {key: part} if part else {}
        else:
            for rest, manifest in zip(own, manifests, strict=True):
                rest |= {key: manifest[key]} if key in manifest else {}
    return common, own


def _merged(common, own):
    both = {
        key: _merged(common[key], value)
        for key, value in own.items()
        if isinstance(value, dict) and isinstance(common.get(key), dict)
    }
    return {**common, **own, **both}


def write_atomic(path, text):
    """Write a file so that a reader sees the old or the new content, never a part."""
    partial = path.with_name(path.name + ".part")
    with partial.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def cached_arrays(folder, key, compute):
    """Arrays of ``compute()``, or those that an earlier call with this key left in the folder.

    A damaged file, or one of another version of the code, is not used; where nothing can be written
    it only takes longer.

    Parameters
    ----------
    folder : Path
    key : tuple
        All that the arrays depend on.
    compute : callable

    Returns
    -------
    sequence of ndarray
    """
    digest = hashlib.sha256(repr((code_version(), *key)).encode()).hexdigest()[:32]
    path = folder / f"{digest}.npz"
    unusable = suppress(OSError, ValueError, EOFError, BadZipFile)
    with unusable, path.open("rb") as raw, np.load(raw) as file:
        return list(file.values())
    arrays = compute()
    partial = folder / f"{digest}.{os.getpid()}.part"
    with suppress(OSError):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                np.savez(file, *arrays)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    return arrays


def _sealed(record):
    text = json.dumps(record, separators=(",", ":"))
    return f"{zlib.crc32(text.encode()):08x} {text}\n"


def _unsealed(line):
    """The record of a journal line, or None for a damaged one."""
    checksum, _, text = line.rstrip("\n").partition(" ")
    if not line.endswith("\n") or checksum != f"{zlib.crc32(text.encode()):08x}":
        return None
    return json.loads(text)


def _now():
    return datetime.now(UTC).isoformat(timespec="seconds")


def table_of(folder):
    """Digest of the owners' table that a run's folder has beside its manifest, or None."""
    with suppress(OSError):
        return (Path(folder) / TABLE).read_text(encoding="utf-8").strip()
    return None


def replicates_in(folder):
    """Number of finished replicates in the journal of a run's folder, without reading them."""
    journal = folder / JOURNAL
    return journal.read_bytes().count(b"\n") if journal.is_file() else 0


class RunFolder:
    """The folder of one run, locked against other processes while it is open.

    Parameters
    ----------
    path : Path
    settings : dict
        What the numbers depend on; a folder made with other settings or other code is refused
        with the differences, unless `overwrite`.
    overwrite : bool
    wait : bool
        Wait for another process that has the folder instead of refusing it.
    table : str or None
        Digest of the owners' table, if it must not stand in the manifest; it has a file of its own
        and is compared like a setting.

    Raises
    ------
    ResultsError
        One line: locked, other settings, damaged, or not writable.
    """

    def __init__(self, path, settings, overwrite=False, wait=False, table=None):
        self.path = Path(path)
        self.settings = json.loads(json.dumps(settings))
        self.overwrite = overwrite
        self.table = table
        self.patience = -1 if wait else 0  # seconds; -1 has no end
        self.dropped = 0

    def __enter__(self):
        with self.explained():
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self.path / ".lock")
            try:
                self._lock.acquire(timeout=self.patience)
            except Timeout:
                raise ResultsError(
                    f"{self.path} is in use by another process: wait for it, or choose another "
                    "results_dir"
                ) from None
        try:
            with self.explained():
                self._open()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *exc):
        self._lock.release()

    @contextmanager
    def explained(self):
        """Turn an OSError into one line that says what to do."""
        try:
            yield
        except OSError as error:
            raise ResultsError(
                f"cannot write results in {self.path}: {error.strerror or error}; finished "
                "replicates stay: free space or choose a writable results_dir, then run again"
            ) from error

    @property
    def journal(self):
        """The file with a line for every replicate that is done."""
        return self.path / JOURNAL

    @property
    def manifest_path(self):
        """The file with settings, status and privacy."""
        return self.path / "manifest.json"

    def _open(self):
        self.started, self.attempt = _now(), secrets.token_hex(8)
        if self.overwrite:
            for path in (self.journal, self.manifest_path):
                path.unlink(missing_ok=True)
        self.records = self._read_journal()
        with suppress(OSError, ValueError, KeyError, TypeError):  # one that was stopped goes on
            manifest = json.loads(self.manifest_path.read_text(encoding="utf-8"))
            if manifest["settings"] == self.settings and table_of(self.path) == self.table:
                self.attempt = str(manifest["attempt"])
        if self.records:  # without a finished replicate there is nothing to protect
            self._check_manifest()

    def _check_manifest(self):
        try:
            manifest = json.loads(self.manifest_path.read_text(encoding="utf-8"))
            old, code = manifest["settings"], manifest["code"]
            self.started = manifest["started"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            raise ResultsError(
                f"{self.manifest_path} is missing or damaged, so the settings of the results "
                "beside it are not known: overwrite=true starts the run again"
            ) from None
        changed = differences(old, self.settings)
        if table_of(self.path) != self.table:
            changed.append("the table's content")
        if code != code_version():
            changed.append(f"code version: {code} -> {code_version()}")
        if changed:
            first = "; ".join(changed[:6]) + ("; ..." if len(changed) > 6 else "")
            raise ResultsError(
                f"{self.path} holds results of other settings ({first}): use overwrite=true to "
                "replace them, or another results_dir"
            )

    def _read_journal(self):
        if not self.journal.exists():
            return {}
        with self.journal.open(encoding="utf-8", newline="", errors="replace") as file:
            lines = list(file)
        records = [_unsealed(line) for line in lines]
        whole = [line for line, record in zip(lines, records, strict=True) if record is not None]
        self.dropped = len(lines) - len(whole)
        if self.dropped:
            write_atomic(self.journal, "".join(whole))
        return {record["replicate"]: record for record in records if record is not None}

    def _models(self, replicate):
        return self.path / "models" / f"replicate-{replicate:04d}"

    def has_models(self, replicate):
        """Whether the models of a finished replicate were saved."""
        return self._models(replicate).is_dir()

    @staticmethod
    def _write_models(folder, models):
        """All models of a replicate or none: the folder gets its name when it is complete."""
        partial = folder.with_name(folder.name + ".part")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for i, model in enumerate(models):
            write_atomic(partial / f"task-{i:04d}.json", json.dumps(model, indent=1) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(partial, folder)

    def append(self, record):
        """Add a finished replicate; it is on disk when this returns.

        Its arrays go to ``<name>/replicate-<r>.npy`` and its models to
        ``models/replicate-<r>/task-<i>.json``, before the line that says it is finished.
        """
        record = dict(record)
        arrays, models = record.pop("arrays", {}), record.pop("models", [])
        line = _sealed(record)
        with self.explained():
            for name, array in arrays.items():
                (self.path / name).mkdir(exist_ok=True)
                np.save(self.path / name / f"replicate-{record['replicate']:04d}.npy", array)
            if models:
                self._write_models(self._models(record["replicate"]), models)
        with self.explained(), self.journal.open("a", encoding="utf-8", newline="") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self.records[record["replicate"]] = _unsealed(line)

    def write_manifest(self, status, **blocks):
        """Write manifest.json: settings, versions, times and the given blocks."""
        settings = json.dumps(self.settings, sort_keys=True)
        content = {
            "status": status,
            "started": self.started,
            "attempt": self.attempt,
            "updated": _now(),
            "replicates_done": len(self.records),
            "settings": self.settings,
            "settings_digest": hashlib.sha256(settings.encode()).hexdigest(),
            "code": code_version(),
            "environment": environment(),
            **blocks,
        }
        with self.explained():
            if self.table:
                write_atomic(self.path / TABLE, f"{self.table}\n")
            else:
                (self.path / TABLE).unlink(missing_ok=True)
            write_atomic(self.manifest_path, json.dumps(content, indent=1) + "\n")

    def write_card(self, text):
        """Write the closing card as card.txt."""
        with self.explained():
            write_atomic(self.path / "card.txt", f"{text}\n")

    def write_table(self, name, rows, first=()):
        """Write rows (dicts) as <name>.csv: the columns `first`, then what else the rows have."""
        columns = list(dict.fromkeys([*first, *(key for row in rows for key in row)]))
        table = pd.DataFrame(rows, columns=columns, dtype=object)
        with self.explained():
            write_atomic(self.path / f"{name}.csv", table.to_csv(index=False))

    def write_tables(self, n_replicates):
        """Write the tables from the first `n_replicates` replicates of the journal."""
        records = [self.records[r] for r in sorted(self.records) if r < n_replicates]
        for name, columns in COLUMNS.items():
            rows = [row for record in records for row in record.get(name, [])]
            if rows or name not in OPTIONAL:
                self.write_table(name, rows, columns)
