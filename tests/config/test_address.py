import pytest

from keepstep.config.address import is_address, parse_address
from keepstep.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "scheme", "place", "path"),
    [
        ("s3://bucket/a/b", "s3", "bucket", "a/b"),
        ("s3://bucket", "s3", "bucket", ""),
        ("gs://bucket//a/", "gs", "bucket", "a"),
        ("az://container/x", "az", "container", "x"),
        ("hf://user/repo", "hf", "user/repo", ""),
        ("hf://user/repo/folder/x", "hf", "user/repo", "folder/x"),
        ("file:///mnt/drive/", "file", "", "/mnt/drive"),
        ("S3://bucket/a", "s3", "bucket", "a"),
        ("https://host.example/a/save-1", "https", "host.example", "a/save-1"),
    ],
)
def test_an_address_is_taken_apart(text: str, scheme: str, place: str, path: str) -> None:
    found = parse_address(text)

    assert (found.scheme, found.place, found.path) == (scheme, place, path)
    assert is_address(text)


@pytest.mark.parametrize(
    "text",
    [
        "runs/checkpoints",
        "s3://",
        "s3:///path",
        "hf://user",
        "file://relative/path",
        "ftp://host/x",
        "s3://bucket/../other",
        "s3://bucket/x?endpoint=y",
        "s3://key:secret@bucket/x",
        "https://name:word@host/x",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_address(text)
    assert "secret" not in str(caught.value)
    assert "word@" not in str(caught.value)


def test_what_is_signed_is_never_printed() -> None:
    found = parse_address("https://host/x/save-1?X-Amz-Signature=abc")

    assert str(found) == "https://host/x/save-1"
    assert str(found.joined("manifest.json")) == "https://host/x/save-1/manifest.json"


def test_names_are_joined_and_taken_off() -> None:
    run = parse_address("s3://bucket").joined("runs/exp")

    assert str(run) == "s3://bucket/runs/exp"
    assert str(run.parent) == "s3://bucket/runs"
    assert run.name == "exp"
    assert str(parse_address("file:///mnt").joined("x")) == "file:///mnt/x"
    assert str(parse_address("file:///mnt/x").parent) == "file:///mnt"


def test_a_windows_path_is_no_address() -> None:
    assert not is_address("C:\\runs")
    assert not is_address("runs/save-1")
