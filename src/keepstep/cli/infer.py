"""`keepstep infer`: run or resume an inference job."""

from keepstep.cli.asked import Accept, Fresh, Rehash, asked_for
from keepstep.cli.run_job import run_job
from keepstep.cli.train import JobFile, Nproc, Overrides


def command(
    job: JobFile,
    nproc: Nproc = 1,
    overrides: Overrides = None,
    fresh: Fresh = False,
    accept: Accept = None,
    rehash: Rehash = False,
) -> None:
    """Run an inference job, or continue it from its newest checkpoint.

    Example: keepstep infer examples/stdlib_lm/infer.yaml
    """
    run_job("infer", job, nproc, overrides or [], asked_for(fresh=fresh, accept=accept, rehash=rehash))
