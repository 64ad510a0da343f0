"""A file is written whole or not at all, where a path leads, with the permissions of any new file."""

import os

import pytest

from kvformat.errors import InputError
from kvformat.files import write_whole


def test_what_cannot_be_made_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(finished):
        finished.write_text("half")
        raise OSError("disk full")

    with pytest.raises(InputError, match="file: cannot be written: disk full"):
        write_whole(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_symbolic_link_stays_one(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_whole(tmp_path / "link", lambda finished: finished.write_text("new"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_regular_file_is_refused_and_stays(tmp_path, make):
    make(tmp_path / "odd")
    with pytest.raises(InputError, match="odd: is no regular file"):
        write_whole(tmp_path / "odd", lambda finished: finished.write_text("new"))
    assert not (tmp_path / "odd").is_file()


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(InputError, match="there is no directory"):
        write_whole(tmp_path / "none" / "file", lambda finished: finished.write_text("new"))


def test_permissions_are_those_of_a_new_file(tmp_path):
    plain = tmp_path / "plain"
    plain.touch()

    def private(finished):
        finished.write_text("new")
        finished.chmod(0o600)

    write_whole(tmp_path / "made", private)
    assert (tmp_path / "made").stat().st_mode == plain.stat().st_mode
