"""`enable()` waits for the Trainer to be imported, and costs a process nothing that never does."""

import subprocess
import sys

SCRIPT = """
import sys
from keepstep.integrations.hugging_face import disable, enable
enable(auto_resume=True)
assert not {"transformers", "torch"} & set(sys.modules), "enable() must not import them"
from transformers import Trainer
assert Trainer.train.__wrapped__ is not None
from keepstep.integrations.hugging_face.hooks import _for_all
assert _for_all[0].auto_resume
disable()
assert not hasattr(Trainer.train, "__wrapped__")
enable()
assert Trainer.train.__wrapped__ is not None
print("as it should be")
"""


def test_enabled_from_outside() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "as it should be\n", done.stderr
