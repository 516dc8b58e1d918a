import os
import subprocess
import sys

import torch

import manyheads
from manyheads.cli import main
from manyheads.cli.info import facts


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
    monkeypatch.setattr("manyheads.cli.info.PACKAGES", {"plots": ("no-such-package",)})
    assert 'not installed (pip install "matplotlib' in facts()
