"""What all commands do alike: their version, a reader that stops, Ctrl-C at any time."""

import os
import signal
import subprocess
import sys
import tomllib

import pytest
from conftest import BIN, ROOT, TINY

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
COMMANDS = {name: [str(BIN / name)] for name in PROJECT["project"]["scripts"]}
COMMANDS |= {path.name: [sys.executable, str(path)] for path in SCRIPTS}
every_command = pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)


def carried_out(command, folder, **options):
    """The command in a folder, with Ctrl-C as a terminal has it."""
    return subprocess.run(
        command,
        cwd=folder,
        text=True,
        stderr=subprocess.PIPE,
        check=False,
        timeout=100,
        # where the tests run in the background of a shell, SIGINT is ignored and that is inherited
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


@every_command
def test_the_version_is_that_of_the_package_and_loads_nothing(command, tmp_path):
    (tmp_path / "numpy.py").write_text("raise RuntimeError")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = carried_out([*command, "--version"], tmp_path, stdout=subprocess.PIPE, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "mpmtl 0.1.0\n", "")


@every_command
def test_ctrl_c_while_it_imports_is_one_line(command, tmp_path):
    """At the first import of numpy, which every command needs."""
    (tmp_path / "numpy.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time; time.sleep(60)"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = carried_out(command, tmp_path, stdout=subprocess.DEVNULL, env=env)
    assert done.returncode == 130
    assert done.stderr.startswith("stopped")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        ["mpmtl-run", *TINY, "tuning=fixed"],
        ["mpmtl-run", "-m", "method=stl,lr", *TINY, "tuning=fixed"],
        ["mpmtl-audit", "samples=200"],
        ["mpmtl-report", "--help"],
        ["plot_task_number.py", "--help"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_reader_that_stops_ends_the_command_silently(command, tmp_path):
    """As in ``| head``: the reader is gone before the first line."""
    read, write = os.pipe()
    os.close(read)
    done = carried_out([*COMMANDS[command[0]], *command[1:]], tmp_path, stdout=write)
    os.close(write)
    assert done.returncode == 141
    assert done.stderr == ""


def test_every_script_is_carried_out_by_the_same_hand():
    """Thin calls of an entry point, or `carry_out` of their own function."""
    for path in SCRIPTS:
        last = path.read_text().split('if __name__ == "__main__":')[-1]
        assert "mpmtl.paper.entry" in path.read_text() or "experiments.entry" in path.read_text()
        assert "carry_out(main)" in last or "main" not in last, path
