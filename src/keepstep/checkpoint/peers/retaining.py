"""Deletes on every host what the retention rule gives up. Collective."""

import logging
from collections.abc import Sequence

from keepstep.checkpoint.peers.holdings import join
from keepstep.checkpoint.save import SaveRequest
from keepstep.dist.world import World
from keepstep.errors import RunInUseError
from keepstep.plan.assemble import plan_host_retention
from keepstep.plan.hosts import Hosts
from keepstep.plan.retention import Verdict
from keepstep.storage.deletion import delete_checkpoint
from keepstep.storage.holdings import Held, held_in
from keepstep.storage.leases import held_steps

logger = logging.getLogger("keepstep")


def retain(request: SaveRequest, hosts: Hosts, world: World) -> None:
    """One decision for all hosts, from what all of them hold; a failure warns, and the next save tries again."""
    if request.num_to_keep is None:
        return
    found: tuple[Held, frozenset[int]] | None = None
    leads = hosts.leads(world.rank)
    if leads:
        try:
            request.claim.confirm()
            found = held_in(request.folder), frozenset(held_steps(request.folder))
        except (OSError, RunInUseError) as error:
            logger.warning(
                "could not look for old checkpoints in %s (%s); the next save tries again", request.folder, error
            )
    told = world.to_main(found)
    verdicts = world.broadcast(_decide(request, [told[rank] for rank in hosts.leaders]) if world.rank == 0 else ())
    for verdict in verdicts if leads else ():
        if not verdict.keep and (request.folder / request.naming.checkpoint_name(verdict.step)).is_dir():
            _delete(request, verdict.step, verdict.reason)


def _decide(request: SaveRequest, told: Sequence[tuple[Held, frozenset[int]] | None]) -> tuple[Verdict, ...]:
    """Nothing, as long as one of the hosts could not look."""
    seen = [one for one in told if one is not None]
    if len(seen) < len(told):
        return ()
    holdings, manifests = join([held for held, _ in seen])
    protected = [request.step, *request.protected]
    read = {step for _, steps in seen for step in steps}
    return plan_host_retention(holdings, manifests, request.num_to_keep, protected, read)


def _delete(request: SaveRequest, step: int, reason: str) -> None:
    name = request.naming.checkpoint_name(step)
    try:
        if delete_checkpoint(request.folder, step, request.attempt, request.naming):
            logger.info("deleted %s: %s", request.folder / name, reason)
    except OSError as error:
        logger.warning("could not delete %s (%s); the next save tries again", request.folder / name, error)
