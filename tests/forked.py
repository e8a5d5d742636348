"""A command in a process that is forked from one where everything is imported already.

It has its own arguments, folder, environment, streams and exit code, like any process, and it
leaves nothing behind. What it does not show is the start itself, which `test_entry` looks at.
"""

import atexit
import io
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

MODULES = (
    *("mpmtl.experiments.cli", "mpmtl.experiments.audit", "mpmtl.experiments.commands"),
    *("mpmtl.experiments.predict", "mpmtl.experiments.schema", "mpmtl.experiments.ledger"),
    *("mpmtl.paper.commands", "mpmtl.federation.cli", "joblib.externals.loky"),
)
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(list(MODULES))


def _begin(program, arguments, cwd, env, streams):
    """What a shell and the interpreter do before the command's own first line."""
    for number, path in enumerate(streams, 1):
        os.dup2(os.open(path, os.O_WRONLY), number)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(
        io.FileIO(2, "w", closefd=False), "utf-8", "backslashreplace", write_through=True
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    own = [os.path.abspath(p) for p in env.get("PYTHONPATH", "").split(os.pathsep) if p]
    sys.path[:0] = [os.path.dirname(program), *own]
    sys.argv[:] = [program, *arguments]


def _carry_out(*given):
    _begin(*given)
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # as at the interpreter's end, which a forked process leaves out


def carried_out(program, arguments, cwd, env, timeout=300):
    """Carry out a Python program, by the path of its file.

    Returns
    -------
    subprocess.CompletedProcess
    """
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder, name) for name in ("stdout", "stderr")]
        for path in streams:
            path.touch()
        words = [str(program), *map(str, arguments)]
        given = (words[0], words[1:], str(cwd), dict(env), [str(path) for path in streams])
        process = processes.Process(target=_carry_out, args=given)
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(words, timeout)
        printed = [path.read_text(encoding="utf-8") for path in streams]
    return subprocess.CompletedProcess(words, process.exitcode, *printed)
