"""What every store does. A test class derives from this and gives `store`, an empty one."""

from pathlib import Path

import pytest

from keepstep.storage.digest import digest_file, digest_of_blocks
from keepstep.storage.stores.base import ChangedFileError, Store, Upload
from keepstep.storage.stores.meter import Meter

LARGE = 20 * 1024 * 1024 + 5


def upload_of(name: str, path: Path) -> Upload:
    size, digests = digest_file(path)
    return Upload(name, path, size, digest_of_blocks(digests))


def file_of(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


class StoreContract:
    """The tests. `sources` is a folder for local files."""

    @pytest.fixture
    def sources(self, tmp_path: Path) -> Path:
        folder = tmp_path / "sources"
        folder.mkdir()
        return folder

    def put(self, store: Store, sources: Path, prefix: str, files: dict[str, bytes], last: str = "last") -> Meter:
        meter = Meter()
        uploads = [upload_of(f"{prefix}/{name}", file_of(sources, name, data)) for name, data in files.items()]
        store.put(uploads, upload_of(f"{prefix}/{last}", file_of(sources, last, b"the last")), meter)
        return meter

    def test_what_was_put_is_listed_and_read(self, store: Store, sources: Path) -> None:
        meter = self.put(store, sources, "run/save-1", {"a": b"abc", "empty": b"", "sub/b": b"de"})

        names = {one.name: one.size for one in store.list()}
        assert names == {"run/save-1/a": 3, "run/save-1/empty": 0, "run/save-1/last": 8, "run/save-1/sub/b": 2}
        assert store.read("run/save-1/a", 100) == b"abc"
        assert store.read("run/save-1/empty", 100) == b""
        assert meter.total == 3 + 2 + 8

    def test_a_large_file_goes_in_parts_and_comes_in_ranges(self, store: Store, sources: Path) -> None:
        data = bytes(range(256)) * (LARGE // 256 + 1)
        data = data[:LARGE]
        self.put(store, sources, "run/save-1", {"large": data})

        assert {one.name: one.size for one in store.list("run/save-1")}["run/save-1/large"] == LARGE
        for begin, length in ((0, 10), (8 * 1024 * 1024 - 3, 6), (LARGE - 4, 4)):
            target = bytearray(length)
            store.read_into("run/save-1/large", begin, memoryview(target))
            assert bytes(target) == data[begin : begin + length]

    def test_a_range_beyond_the_end_is_an_end_of_file(self, store: Store, sources: Path) -> None:
        self.put(store, sources, "run/save-1", {"a": b"abc"})

        with pytest.raises(EOFError):
            store.read_into("run/save-1/a", 1, memoryview(bytearray(3)))

    def test_a_prefix_is_made_of_whole_parts_of_the_path(self, store: Store, sources: Path) -> None:
        self.put(store, sources, "run/save-1", {"a": b"1"})
        self.put(store, sources, "run/save-10", {"a": b"10"})

        assert [one.name for one in store.list("run/save-1")] == ["run/save-1/a", "run/save-1/last"]
        assert len(store.list("run")) == 4

    def test_a_listing_of_nothing_is_empty(self, store: Store) -> None:
        assert store.list() == []
        assert store.list("run/save-1") == []

    def test_what_is_not_there_is_not_found(self, store: Store, sources: Path) -> None:
        self.put(store, sources, "run/save-1", {"a": b"1"})

        with pytest.raises(FileNotFoundError):
            store.read("run/save-1/b", 100)
        with pytest.raises(FileNotFoundError):
            store.read_into("run/save-1/b", 0, memoryview(bytearray(1)))

    def test_an_object_above_the_limit_is_not_read(self, store: Store, sources: Path) -> None:
        self.put(store, sources, "run/save-1", {"a": b"abc"})

        with pytest.raises(OSError):
            store.read("run/save-1/a", 2)

    @pytest.mark.parametrize("size", [1000, LARGE])
    def test_a_file_that_has_changed_never_becomes_a_whole_object(self, store: Store, sources: Path, size: int) -> None:
        good = upload_of("run/save-1/good", file_of(sources, "good", b"good"))
        bad = upload_of("run/save-1/bad", file_of(sources, "bad", b"x" * size))
        bad.path.write_bytes(b"x" * (size - 1) + b"y")
        last = upload_of("run/save-1/last", file_of(sources, "last", b"the last"))

        with pytest.raises(ChangedFileError, match="bad"):
            store.put([good, bad], last, Meter())
        names = [one.name for one in store.list("run")]
        assert "run/save-1/bad" not in names
        assert "run/save-1/last" not in names

    def test_what_is_put_again_takes_the_place_of_what_was(self, store: Store, sources: Path) -> None:
        self.put(store, sources, "run/save-1", {"a": b"old"})
        self.put(store, sources, "run/save-1", {"a": b"newer"})

        assert store.read("run/save-1/a", 100) == b"newer"

    def test_what_an_upload_has_left_whole_is_not_sent_again(self, store: Store, sources: Path) -> None:
        large = upload_of("run/save-1/large", file_of(sources, "large", b"l" * LARGE))
        small = upload_of("run/save-1/small", file_of(sources, "small", b"s"))
        last = upload_of("run/save-1/last", file_of(sources, "last", b"the last"))
        store.put([large], small, Meter())
        again = Meter()

        store.put([large, small], last, again)

        assert again.total <= 1 + 8
        assert store.read("run/save-1/last", 100) == b"the last"

    def test_what_has_only_the_right_size_is_sent_again(self, store: Store, sources: Path) -> None:
        store.write("run/save-1/a", b"xyz")
        self.put(store, sources, "run/save-1", {"a": b"abc"})

        assert store.read("run/save-1/a", 100) == b"abc"

    def test_a_note_is_written_over_and_made_once(self, store: Store) -> None:
        assert store.create("run/.keepstep/note", b"first")
        assert not store.create("run/.keepstep/note", b"second")
        assert store.read("run/.keepstep/note", 100) == b"first"
        store.write("run/.keepstep/note", b"third")
        assert store.read("run/.keepstep/note", 100) == b"third"

    def test_what_is_removed_is_gone_and_no_neighbour_with_it(self, store: Store, sources: Path) -> None:
        self.put(store, sources, "run/save-1", {"a": b"1", "sub/b": b"2"})
        self.put(store, sources, "run/save-10", {"a": b"10"})

        store.remove("run/save-1", "last")

        assert [one.name for one in store.list("run")] == ["run/save-10/a", "run/save-10/last"]

    def test_removing_what_is_not_there_is_fine(self, store: Store) -> None:
        store.remove("run/save-1", "last")

    def test_an_end_in_the_middle_leaves_nothing_whole(self, store: Store, sources: Path) -> None:
        def end() -> None:
            raise InterruptedError("stop")

        with pytest.raises(InterruptedError):
            store.put(
                [upload_of("run/save-1/a", file_of(sources, "a", b"x" * LARGE))],
                upload_of("run/save-1/last", file_of(sources, "last", b"l")),
                Meter(check=end),
            )
        assert store.list("run") == []
