"""Tools to test one's own jobs with."""

from keepstep.plan.diagnosis import Divergence
from keepstep.testing.twin import TwinReport, twin_check

__all__ = ["Divergence", "TwinReport", "twin_check"]
