import gc
import os
import threading

import pytest

from headrace.errors import DatasetError
from headrace.reading.local import ByteRange, FileLeases, LocalFiles


def stamp(path):
    stat = os.stat(path)
    return stat.st_size, stat.st_mtime_ns


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(range(256)))
    return str(path)


def test_exactly_the_range_is_read(file):
    files = LocalFiles()
    assert files.read(ByteRange(file, 10, 5)) == bytes(range(10, 15))
    assert files.read(ByteRange(file, 0, 0)) == b""
    assert files.statistics().bytes == 5


def test_a_range_past_the_end_raises_instead_of_giving_fewer_bytes(file):
    with pytest.raises(DatasetError, match="260") as caught:
        LocalFiles().read(ByteRange(file, 250, 10))
    assert caught.value.file == file


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DatasetError, match="No such file") as caught:
        LocalFiles().read(ByteRange(str(tmp_path / "none"), 0, 1))
    assert caught.value.file == str(tmp_path / "none")
    assert caught.value.remedy


def test_another_file_of_the_same_name_is_refused(file, tmp_path):
    files = LocalFiles()
    old = stamp(file)
    assert files.read(ByteRange(file, 0, 2, old)) == b"\0\1"
    other = tmp_path / "b.bin"
    other.write_bytes(b"other")
    os.utime(other, ns=(1, 1))
    os.replace(other, file)
    # Readers of the old file continue with it: it is still open.
    assert files.read(ByteRange(file, 0, 2, old)) == b"\0\1"
    assert files.read(ByteRange(file, 0, 2, stamp(file))) == b"ot"
    with pytest.raises(DatasetError, match="changed"):
        LocalFiles().read(ByteRange(file, 0, 2, old))


def test_no_more_files_stay_open_than_allowed(tmp_path):
    files = LocalFiles(max_open=3)
    paths = [tmp_path / f"{i}" for i in range(10)]
    for i, path in enumerate(paths):
        path.write_bytes(bytes([i]) * 4)
    gc.collect()  # other tests' files
    before = len(os.listdir("/proc/self/fd"))
    for i, path in enumerate(paths * 2):
        assert files.read(ByteRange(str(path), 1, 2)) == bytes([i % 10]) * 2
    assert files.statistics().open_files == 3
    assert len(os.listdir("/proc/self/fd")) == before + 3
    files.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert "0/3 open" in repr(files)


def test_files_in_use_by_other_threads_are_not_closed_under_them(tmp_path):
    files = LocalFiles(max_open=2)
    for i in range(8):
        (tmp_path / f"{i}").write_bytes(bytes([i]) * 1000)
    wrong = []

    def read(first):
        for round_ in range(300):
            i = (first + round_) % 8
            if files.read(ByteRange(str(tmp_path / f"{i}"), 10, 100)) != bytes([i]) * 100:
                wrong.append(i)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_garbage_collection_closes_the_files(file):
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    files = LocalFiles()
    files.read(ByteRange(file, 0, 1))
    del files
    assert len(os.listdir("/proc/self/fd")) == before


def test_leases_keep_files_open_for_one_thread_up_to_a_limit(tmp_path):
    files = LocalFiles(max_open=8)
    leases = FileLeases(files, limit=2)
    keys = []
    for i in range(4):
        (tmp_path / f"{i}").write_bytes(bytes([i]) * 10)
        keys.append((str(tmp_path / f"{i}"), None))
    for _ in range(3):
        for i, key in enumerate(keys):
            buffer = memoryview(bytearray(4))
            files.read_into(leases[key], key[0], 3, buffer)
            assert bytes(buffer) == bytes([i]) * 4
    assert sum(handle.users for handle in files._handles.values()) == 2
    leases.close()
    assert sum(handle.users for handle in files._handles.values()) == 0


def test_reading_into_memory_past_the_end_raises(file):
    files = LocalFiles()
    with files.using(file, None) as fd, pytest.raises(DatasetError, match="300"):
        files.read_into(fd, file, 200, memoryview(bytearray(100)))
