import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.plan.manifest import FileRecord, Manifest, ManifestError, from_text, to_text
from keepstep.storage.digest import digest_of_bytes

MANIFEST = Manifest(10, 2, 4, ("model", "rng"), {"__0_0.distcp": FileRecord(7, "aa"), ".metadata": FileRecord(3, "bb")})


def test_it_comes_back_as_it_was() -> None:
    back = from_text(to_text(MANIFEST, digest_of_bytes), digest_of_bytes)
    assert back == MANIFEST
    assert back.size == 10


@given(st.data())
def test_any_changed_character_that_matters_is_noticed(data: st.DataObject) -> None:
    text = to_text(MANIFEST, digest_of_bytes)
    position = data.draw(st.integers(0, len(text) - 1))
    character = data.draw(st.characters(codec="ascii", exclude_characters=text[position]))
    changed = text[:position] + character + text[position + 1 :]
    try:
        same = from_text(changed, digest_of_bytes)
    except ManifestError:
        return
    assert same == MANIFEST  # white space between values means nothing


@pytest.mark.parametrize("cut", [0, 1, 50, -2])
def test_a_cut_manifest_is_refused(cut: int) -> None:
    with pytest.raises(ManifestError):
        from_text(to_text(MANIFEST, digest_of_bytes)[:cut], digest_of_bytes)


def forged(**fields: object) -> str:
    """A manifest with a right digest over wrong content."""
    body = json.loads(to_text(MANIFEST, digest_of_bytes)) | fields
    del body["digest"]
    digest = digest_of_bytes(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
    return json.dumps(body | {"digest": digest})


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"format": 99}, "format 99"),
        ({"step": -1}, "wrong type"),
        ({"step": True}, "wrong type"),
        ({"files": []}, "wrong type"),
        ({"files": {"../x": {"size": 1, "digest": "aa"}}}, "not allowed"),
        ({"files": {"/etc/passwd": {"size": 1, "digest": "aa"}}}, "not allowed"),
        ({"files": {"a": {"size": 1}}}, "wrong type"),
        ({"files": {"manifest.json": {"size": 1, "digest": "aa"}}}, "not allowed"),
        ({"files": {"a": {"size": 1, "digest": 3}}}, "wrong type"),
        ({"files": {"a": {"size": 1.0, "digest": "aa"}}}, "wrong type"),
        ({"components": "model"}, "wrong type"),
        ({"components": [3]}, "wrong type"),
        ({"step": 1 << 63}, "wrong type"),
        ({"world_size": 10**4000}, "wrong type"),
        ({"step": float("nan")}, "NaN is no number"),
        ({"format": True}, "unknown"),
        ({"format": 1.0}, "unknown"),
    ],
)
def test_well_formed_but_wrong_content_is_refused(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(ManifestError, match=problem):
        from_text(forged(**fields), digest_of_bytes)


@pytest.mark.parametrize(
    "text", ["[]", "null", "3", "{}", '{"format": 1}', "[" * 100_000, '{"a": 1, "a": 1}', "1" * 5000]
)
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(ManifestError):
        from_text(text, digest_of_bytes)


def test_a_blank_that_has_become_another_one_is_damage() -> None:
    text = to_text(Manifest(5, 1, 1, ("model",), {"a": FileRecord(1, "00")}), digest_of_bytes)
    assert from_text(text, digest_of_bytes).step == 5
    for changed in (text.replace(" ", "\t", 1), text.replace("\n", " ", 1), text + "\n"):
        with pytest.raises(ManifestError, match="does not match its own digest"):
            from_text(changed, digest_of_bytes)
