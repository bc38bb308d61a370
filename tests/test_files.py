"""Atomic writing and locks."""

import os
import signal
import subprocess
import sys

import pytest

from headrace.files import Locked, atomic_write, locked, replacing


def test_a_file_is_replaced_as_a_whole(tmp_path):
    file = tmp_path / "result.json"
    atomic_write(file, "old")
    atomic_write(file, b"new")
    assert file.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["result.json"]


def test_an_error_while_writing_leaves_the_old_file_and_nothing_else(tmp_path):
    file = tmp_path / "result.json"
    atomic_write(file, "old")
    with pytest.raises(KeyError), replacing(file) as out:
        out.write(b"half")
        raise KeyError
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["result.json"]


def test_a_lock_that_is_held_names_its_holder_and_is_free_afterwards(tmp_path):
    with locked(tmp_path / "lock"):
        with pytest.raises(Locked) as caught, locked(tmp_path / "lock"):
            pass
        assert caught.value.holder == str(os.getpid())
    with locked(tmp_path / "lock"):
        pass


def test_waiting_for_a_lock_says_so_once_and_a_killed_holder_frees_it(tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from headrace.files import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "lock")], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        told = []

        def waiting():
            told.append(True)
            holder.send_signal(signal.SIGKILL)

        with locked(tmp_path / "lock", waiting):
            assert told == [True]
