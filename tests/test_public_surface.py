"""What the package promises from outside."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import keepstep
from keepstep import errors

ROOT = Path(__file__).parents[1]


def test_every_public_name_is_there() -> None:
    assert sorted(keepstep.__all__) == sorted(set(keepstep.__all__))
    for name in keepstep.__all__:
        assert getattr(keepstep, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        keepstep.nonsense  # noqa: B018


def test_every_error_is_public_and_a_built_in_that_a_caller_would_expect() -> None:
    tree = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.KeepstepError)]
    for error in tree:
        assert error.__name__ in keepstep.__all__
        if error is not errors.KeepstepError:
            assert issubclass(error, ValueError | RuntimeError | OSError)
    codes = {e.__name__: e.exit_code for e in tree}
    assert (codes["ConfigError"], codes["DamagedCheckpointError"], codes["StopRequested"]) == (2, 4, 75)


@pytest.mark.parametrize("module", ["keepstep", "keepstep.plan", "keepstep.ops.listing", "keepstep.cli.main"])
def test_these_imports_need_no_torch(module: str) -> None:
    code = f"import sys, {module}; assert not {{'torch', 'numpy'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_dependency_has_a_lower_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert all(">=" in dependency for dependency in project["dependencies"])
    assert project["version"] in (ROOT / "CHANGELOG.md").read_text()


def test_the_readme_names_what_exists() -> None:
    readme = (ROOT / "README.md").read_text()
    assert readme.index("make run") < readme.index("make test") < 400
    for name in ("examples/stdlib_lm", "examples/own_loop/train.py", "docs/architecture.md", "CONTRIBUTING.md"):
        assert name in readme
        assert (ROOT / name).exists()
