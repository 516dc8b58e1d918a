import os
import stat
import threading
from pathlib import Path

import pytest

from manyheads.errors import OptionError
from manyheads.files import PAGES, check_path, write_text, write_whole


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.png"
    write_text(path, "old")

    def half(file: Path) -> None:
        assert file.suffix == ".png"
        file.write_text("ne")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_whole(path, half)
    assert path.read_text() == "old"
    assert os.listdir(path.parent) == ["file.png"]
    write_text(path, "new")
    assert path.read_text() == "new"
    assert os.listdir(path.parent) == ["file.png"]


def test_the_bytes_are_on_the_disk_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *given, name=name, real=real: (steps.append(name), real(*given))
        )
    write_text(tmp_path / "file", "new")
    assert steps == ["fsync", "replace"]


def test_two_that_write_at_once_leave_one_of_both_whole(tmp_path: Path) -> None:
    path, halfway = tmp_path / "file", threading.Barrier(2)

    def slowly(letter: str) -> None:
        def write(file: Path) -> None:
            with file.open("a") as opened:
                opened.write(letter)
                opened.flush()
                halfway.wait(10)
                opened.write(letter)

        write_whole(path, write)

    threads = [threading.Thread(target=slowly, args=letter) for letter in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() in ("aa", "bb")
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_has_the_rights_that_any_new_file_has(tmp_path: Path) -> None:
    def private(file: Path) -> None:
        file.write_text("new")
        file.chmod(0o600)

    (tmp_path / "usual").touch()
    write_whole(tmp_path / "file", private)
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_link_stays_one(tmp_path: Path) -> None:
    link, far = tmp_path / "link", tmp_path / "far" / "file"
    link.symlink_to(far)
    write_text(link, "new")
    assert link.is_symlink()
    assert far.read_text() == "new"


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    told: list[str] = []
    reader = threading.Thread(target=lambda: told.append(pipe.read_text()))
    reader.start()
    write_text(check_path(pipe, example="a"), "new")
    reader.join(10)
    assert told == ["new"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_half_a_character_is_spelled_in_a_text_and_kept_in_a_name(tmp_path: Path) -> None:
    path = tmp_path / "a\udcff"
    write_text(path, "b\udcff月\r\n")
    assert path.read_bytes() == "b\\udcff月\r\n".encode()
    with pytest.raises(OptionError, match=r"got path='[^']*a\\udcff'"):
        check_path(path, example="a.html", endings=PAGES)


def test_a_path_that_no_file_can_be_written_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "heads.html"
    assert check_path(path, example="a.html", endings=PAGES) == path
    with pytest.raises(
        OptionError, match=r"path must end in one of .html, .htm; got .*a.html, for"
    ):
        check_path(tmp_path / "heads.png", example="a.html", endings=PAGES)
    with pytest.raises(
        OptionError, match=r"path must lie in a folder that exists; got .*Make '.*n"
    ):
        check_path(tmp_path / "none" / "heads.html", example="a.html", endings=PAGES)
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(OptionError, match="path must be one that a file can be written to; got pa"):
        check_path(tmp_path / "folder.html", example="a.html", endings=PAGES)
    # The one who runs the tests may be allowed everything.
    monkeypatch.setattr(os, "access", lambda place, _: place != tmp_path.resolve())
    with pytest.raises(OptionError, match="path must be one that a file can be written to; got pa"):
        check_path(path, example="a.html", endings=PAGES)
