"""Entry points: what all commands do alike about their version, their end, and Ctrl-C.

Nothing heavy is imported here, so that all of it holds from a command's first moment on.
"""

import os
import signal
import sys
from importlib import import_module

from mpmtl import __version__
from mpmtl.errors import InputError, ResultsError

INTERRUPTED = 128 + signal.SIGINT
READER_GONE = 141  # 128 + SIGPIPE, as of a program that the signal ended
RESUMES = "finished replicates are saved; the same command goes on from there"


def _say_stopped(stopped):
    """One line, below the terminal's own ``^C``."""
    start = "\n" if os.isatty(2) else ""
    line = f"{start}stopped{': ' * bool(stopped)}{stopped}\n"
    os.write(2, line.encode())


class _Quiet:
    """A text stream whose reader may stop, as in ``| head``: then the command ends, silently.

    As a `SystemExit`, which no handler of faults on the way takes for one.
    """

    def __init__(self, stream):
        self._stream = stream

    def write(self, text):
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self.leave()

    def flush(self):
        try:
            self._stream.flush()
        except BrokenPipeError:
            self.leave()

    def leave(self):
        """End the command; what Python still writes at its exit goes nowhere."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        raise SystemExit(READER_GONE)

    def __getattr__(self, name):
        return getattr(self._stream, name)


def begin(stopped=""):
    """What a command does before it imports anything: Ctrl-C is one line and exit code 130.

    Asked for its version, it prints that and ends.

    Linear algebra gets one thread for each process: processes are the parallelism.

    Parameters
    ----------
    stopped : str
        What to say after Ctrl-C.
    """
    if "--version" in sys.argv[1:]:
        print(f"mpmtl {__version__}")
        sys.exit()
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = "1"
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not in the background

        def at_once(*_):
            _say_stopped(stopped)
            os._exit(INTERRUPTED)

        signal.signal(signal.SIGINT, at_once)


def carry_out(function, *args, stopped="", **options):
    """Call a command's function; its errors are one line and exit code 2, see also `begin`.

    Parameters
    ----------
    function : callable
    stopped : str
        What to say after Ctrl-C.
    """
    if callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, signal.default_int_handler)  # from now on with a clean-up
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_Quiet, streams)
    try:
        function(*args, **options)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))  # the next one, silently
        _say_stopped(stopped)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.stdout.leave()
    except (InputError, ResultsError, OSError) as error:
        import_module("mpmtl.experiments.layout").say_error(error)
        sys.exit(2)
    finally:
        try:
            sys.stdout.flush()
        finally:
            sys.stdout, sys.stderr = streams


def command(module, function="main", stopped=""):
    """An entry point: a function of a module that is loaded when the command is called.

    Parameters
    ----------
    module, function : str
    stopped : str
        What to say after Ctrl-C.

    Returns
    -------
    callable
    """

    def entry(*args, **options):
        begin(stopped)
        carry_out(getattr(import_module(module), function), *args, stopped=stopped, **options)

    entry.__doc__ = f"Entry point: `{function}` of {module}."
    return entry


run = command("mpmtl.experiments.cli", stopped=RESUMES)
audit = command(
    "mpmtl.experiments.cli", "audit_main", stopped="an audit starts again from its seed"
)
predict = command("mpmtl.experiments.predict")
schema = command("mpmtl.experiments.schema")
data = command("mpmtl.experiments.commands", "data_main")
ledger = command("mpmtl.experiments.ledger")
