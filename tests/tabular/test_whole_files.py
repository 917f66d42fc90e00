"""Files are replaced whole or not at all, and what is no file is not replaced."""

import os
import stat
import threading
import time

import pytest

from stepless.tabular.whole_files import STALE, whole_file, whole_text, write_whole


def test_a_failure_leaves_what_was_there_and_nothing_beside_it(tmp_path):
    path = tmp_path / "a.json"
    write_whole(path, "old")
    with pytest.raises(TypeError, match="bytes-like"), whole_file(path) as file:
        file.writelines([b"new, but only a p", "art of it"])
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "a.json"
    write_whole(path, "old")
    with whole_text(path) as file:
        file.write("näw\r\n")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_bytes() == "näw\r\n".encode()


def test_others_may_read_it_as_they_may_read_any_file(tmp_path):
    before = os.umask(0o022)
    try:
        write_whole(tmp_path / "a", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644


def test_links_are_followed(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_pipe_stays_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, "through")
    reader.join()
    assert read == [b"through"]
    assert pipe.is_fifo()


def test_what_a_kill_left_is_removed_when_it_is_old(tmp_path):
    old, young, other = (tmp_path / name for name in ("a-0123abcd.tmp", "a-89abcdef.tmp", "b-0123abcd.tmp"))
    for path in (old, young, other):
        path.write_bytes(b"half")
    for path in (old, other):
        os.utime(path, (time.time() - STALE - 1,) * 2)
    write_whole(tmp_path / "a", "whole")
    assert sorted(os.listdir(tmp_path)) == ["a", "a-89abcdef.tmp", "b-0123abcd.tmp"]


def test_what_cannot_be_written_says_so(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder; name a file to be written"):
        write_whole(tmp_path, "")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere to write a\.txt into; make it first"):
        write_whole(tmp_path / "nowhere" / "a.txt", "")
