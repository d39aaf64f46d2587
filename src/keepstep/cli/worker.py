"""The entry point of a rank under keepstep's launcher: `keepstep`, leaving its exit code where the launcher looks."""

import os
import sys
from pathlib import Path

from keepstep.cli.main import main

_OUTCOME_VARIABLE = "KEEPSTEP_OUTCOME_FILE"


def run() -> None:
    """Run the command line and note the main process's exit code."""
    try:
        main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
        if os.environ.get("RANK") == "0" and _OUTCOME_VARIABLE in os.environ:
            Path(os.environ[_OUTCOME_VARIABLE]).write_text(str(code))
        sys.exit(code)


if __name__ == "__main__":
    run()
