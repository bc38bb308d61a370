"""`--json`, tables and the parts that all commands share."""

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys

import pytest

from headrace.cli import main as entry
from headrace.cli.output import JsonOutput, add_json_option, print_table

COMMANDS = [*entry._COMMANDS]


@pytest.fixture
def command(monkeypatch):
    """A command of ours in the place of `doctor`; it takes a path and overrides."""

    def add_arguments(parser):
        parser.add_argument("path")
        parser.add_argument("overrides", nargs="*")
        add_json_option(parser)

    def run(args):
        with args.json.kept_clean():
            print("a library prints")
        args.json.write({"path": args.path, "overrides": args.overrides})
        if not args.json.on_stdout:
            print("for people")
        return 0

    doctor = importlib.import_module("headrace.cli.doctor")
    monkeypatch.setattr(doctor, "add_arguments", add_arguments)
    monkeypatch.setattr(doctor, "run", run)
    return lambda *words: entry.main(["doctor", *map(str, words)])


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_same_json_option(name):
    parser = argparse.ArgumentParser()
    importlib.import_module(f"headrace.cli.{name}").add_arguments(parser)
    assert parser.get_default("json") == JsonOutput(None)
    (option,) = (each for each in parser._actions if "--json" in each.option_strings)
    assert option.nargs == "?"
    assert option.const.on_stdout


def test_json_alone_prints_one_object_and_nothing_else(command, capsys):
    assert command("mine", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"path": "mine", "overrides": []}
    assert captured.err == "a library prints\n"


def test_json_with_a_file_writes_it_and_prints_for_people(command, capsys, tmp_path):
    file = tmp_path / "new" / "result.json"
    assert command("mine", "--json", file) == 0
    assert json.loads(file.read_text())["path"] == "mine"
    assert capsys.readouterr().out == "a library prints\nfor people\n"


def test_an_override_behind_json_is_not_taken_for_a_file(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command("mine", "--json", "root=oxe", "a.b=1") == 0
    assert json.loads(capsys.readouterr().out)["overrides"] == ["root=oxe", "a.b=1"]
    assert not os.listdir(tmp_path)


def test_a_folder_behind_json_is_refused(command, capsys, tmp_path):
    with pytest.raises(SystemExit) as caught:
        command("--json", tmp_path)
    assert caught.value.code == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_json_that_cannot_be_written_is_one_message(command, capsys, tmp_path):
    (tmp_path / "file").touch()
    assert command("mine", "--json", tmp_path / "file" / "x.json") == 2
    err = capsys.readouterr().err
    assert str(tmp_path / "file" / "x.json") in err
    assert "Traceback" not in err


def test_a_table_keeps_text_from_data_on_one_line_and_shows_brackets(capsys):
    print_table(["name", ">n"], [("a\nb [bold]", "1"), ("x" * 100, "20")])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("a b [bold] ")
    assert lines[2].endswith("  1")
    assert "x" * 69 + "..." in lines[3]


def test_a_column_of_remarks_is_left_out_if_there_are_none(capsys):
    print_table(["name", ""], [("a", "")])
    assert capsys.readouterr().out == "name\n────\na\n"
    print_table(["name", ""], [("a", ""), ("b", "damaged")])
    assert "b     damaged" in capsys.readouterr().out


def test_sigterm_ends_a_command_as_ctrl_c_does():
    program = (
        "import os, signal, sys\n"
        "from headrace.cli import doctor, main\n"
        "doctor.run = lambda args: os.kill(os.getpid(), signal.SIGTERM) or signal.pause()\n"
        "sys.exit(main.main(['doctor', 'x']))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 130
    assert ended.stderr.count("\n") == 2
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
