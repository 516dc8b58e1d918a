import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import torch

import manyheads
from manyheads.cli import main
from manyheads.cli.info import facts

ROOT = Path(__file__).parents[2]


def test_info_prints_versions_device_threads_and_kernels(capsys):
    assert main(["info"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["manyheads"] == manyheads.__version__
    assert lines["torch"] == torch.__version__
    assert torch.backends.cpu.get_cpu_capability() in lines["cpu"]
    assert "reference" in lines["backends"]


def test_the_facts_need_no_extra_and_name_no_path_user_or_host():
    code = (
        "import sys; [sys.modules.update({name: None}) for name in "
        "('cyclopts', 'rich', 'matplotlib', 'lightning')]; "
        "import runpy; sys.argv = ['manyheads']; runpy.run_module('manyheads', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("manyheads ")
    for private in (os.path.expanduser("~"), os.getcwd(), os.uname().nodename):
        assert private not in done.stdout.splitlines()
        assert f" {private}" not in done.stdout


def test_a_package_that_is_missing_is_named_with_its_cure(monkeypatch):
    monkeypatch.setattr("manyheads.cli.info.requirements", lambda: {"": ["no-such-package>=2"]})
    assert 'no-such-package  not installed (pip install "no-such-package>=2")' in facts()


def test_every_package_of_every_extra_is_told_once(monkeypatch):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    # As an installer writes it down; what is installed here may be of an earlier day.
    lines = [f"{line}; extra == '{extra}'" for extra, lines in extras.items() for line in lines]
    monkeypatch.setattr(metadata, "requires", lambda _: project["dependencies"] + lines)
    told = [line.split()[0] for line in facts().splitlines()]
    wanted = {re.split(r"[\[<>=;]", line)[0] for line in project["dependencies"] + lines}
    assert {"torch", "transformers", "anywidget"} <= wanted
    assert all(told.count(package) == 1 for package in wanted)
