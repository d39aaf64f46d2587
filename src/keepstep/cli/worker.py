"""The entry point of a rank under keepstep's launcher: `keepstep`, leaving its exit code where the launcher looks."""

import sys

from keepstep.cli.main import main
from keepstep.storage.attempt_note import note_code


def run() -> None:
    """Run the command line and note the main process's exit code."""
    try:
        main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
        note_code(code)
        sys.exit(code)


if __name__ == "__main__":
    run()
