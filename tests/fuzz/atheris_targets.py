"""The same readers for a fuzzer that is led by coverage. Not part of the tests: it needs
`pip install atheris`.

python -m tests.fuzz.atheris_targets .metadata -max_total_time=60 -rss_limit_mb=4096
"""

import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Fuzz the reader that is named first; what follows goes to libFuzzer."""
    import atheris

    with atheris.instrument_imports(include=["keepstep"]):
        from tests.fuzz.targets import all_targets, make_files

    folder = Path(tempfile.mkdtemp())
    make_files(folder)
    target = {one.name: one for one in all_targets(folder)}[sys.argv.pop(1)]
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, data in enumerate((*target.seeds, *target.crafted)):
        (corpus / str(number)).write_bytes(data)

    def one(data: bytes) -> None:
        try:
            target.prepare(data)
        except KeyError:
            return  # of a whole checkpoint the first byte names the file
        try:
            target.read(data)
        except target.refusals:
            return

    atheris.Setup([*sys.argv, str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
