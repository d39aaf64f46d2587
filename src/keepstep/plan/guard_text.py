"""Says in words what a comparison of run records has found."""

import re
from collections.abc import Sequence

from keepstep.plan.guards import GuardFinding, Policy, refused

_HEX = re.compile(r"[0-9a-f]{32,}")
_LONGEST = 36
_HEADER = ("FIELD", "SAVED", "NOW", "POLICY", "WHAT IT WOULD DO")


def refusal(checkpoint: str, findings: Sequence[GuardFinding]) -> str:
    """The message of a refused resume: what differs, what it would do, how to go on all the same."""
    bad = refused(findings)
    count = "1 difference stands" if len(bad) == 1 else f"{len(bad)} differences stand"
    accept = _safe(" ".join(finding.to_accept for finding in bad))
    notes = [f"{_safe(finding.field)}: {_safe(finding.why)}" for finding in bad if finding.why]
    return "\n".join(
        [
            f"{checkpoint} is not resumed: {count} against it. Nothing was loaded or written.",
            "",
            table(findings),
            "",
            *notes,
            f"Put it back as it was; or go on all the same, with these values and no others: {accept}",
            "or begin another run: another run name or save_dir, or --fresh. (A policy for good: checkpointing.guards)",
        ]
    )


def sentence(finding: GuardFinding) -> str:
    """One difference that does not stand against a resume, for the log."""
    why = f" [{finding.why}]" if finding.why else ""
    return f"{_safe(finding.field)} was {brief(finding.saved)}, is {brief(finding.now)}: {_safe(finding.effect)}{why}"


def table(findings: Sequence[GuardFinding]) -> str:
    """All differences, a line each."""
    rows = [(_safe(f.field), brief(f.saved), brief(f.now), f.policy.value, _safe(f.effect)) for f in findings]
    widths = [max(len(row[column]) for row in [_HEADER, *rows]) for column in range(len(_HEADER))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [_HEADER, *rows]
    )


def brief(text: str) -> str:
    """A value as it is shown: digests by their begin, nothing that a terminal would act on."""
    safe = _safe(text)
    if _HEX.fullmatch(safe):
        return f"{safe[:12]}…"
    return safe if len(safe) <= _LONGEST else f"{safe[: _LONGEST - 1]}…"


def _safe(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def is_quiet(finding: GuardFinding) -> bool:
    """Whether a difference is what the design allows, and worth a line of the log and no warning."""
    return finding.policy is Policy.ACCEPT and not finding.why
