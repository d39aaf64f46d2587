import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keepstep.data.files import lines
from keepstep.errors import DataError


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    text=st.binary(max_size=60) | st.text("a \t\r\n", max_size=60).map(str.encode), piece=st.sampled_from([1, 3, 64])
)
def test_lines_are_those_of_split(tmp_path: Path, text: bytes, piece: int) -> None:
    if text[:2] == b"\x1f\x8b" or text[:3] == b"BZh" or text[:4] in (b"\x28\xb5\x2f\xfd", b"\xfd7zX"):
        return
    path = tmp_path / "text"
    path.write_bytes(text)
    before, lines._PIECE = lines._PIECE, piece
    try:
        found = lines.find_lines(str(path))
    finally:
        lines._PIECE = before
    wanted = [(number, line) for number, line in enumerate(text.split(b"\n")) if line.strip(b"\t\n\v\f\r ")]
    starts = found["records"][0].tolist()
    assert starts[-1] == len(text)
    parts = [text[begin:end] for begin, end in itertools.pairwise(starts)]
    assert [part.strip(b"\t\n\v\f\r ") for part in parts] == [line.strip(b"\t\n\v\f\r ") for _, line in wanted]
    numbers = [number for number, _ in wanted]
    told = found["records"][1, :-1].tolist() if len(found["records"]) > 1 else list(range(len(starts) - 1))
    assert told == numbers


@pytest.mark.parametrize(("magic", "name"), [(b"\x1f\x8b\x08", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd")])
def test_what_is_compressed_is_refused_with_the_remedy(tmp_path: Path, magic: bytes, name: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(magic + bytes(20))
    with pytest.raises(DataError, match=rf"a\.jsonl: is compressed \({name}\).*unpack it"):
        lines.find_lines(str(tmp_path / "a.jsonl"))
