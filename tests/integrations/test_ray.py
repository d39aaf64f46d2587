"""Ray Train: workers that die, fewer of them, refusals. Ray is real here, with two nodes on this machine.

`make ray` runs this. It takes minutes, most of them for starting workers.
"""

import os
import runpy
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from keepstep.errors import GuardRefusedError
from keepstep.ops.audit import audit
from keepstep.storage.ledger import ledger_folder, read_rows
from tests.rig import jobs, ray_jobs, tiny

ray = pytest.importorskip("ray", reason="Ray is not installed: `make ray` does that")
pytest.importorskip("ray.train.torch", reason="Ray Train is not installed: `make ray` does that")

from ray.cluster_utils import Cluster  # noqa: E402
from ray.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError  # noqa: E402
from ray.train.torch import TorchTrainer  # noqa: E402

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
EXAMPLE = runpy.run_path(str(ROOT / "examples" / "ray" / "train.py"))
LARGE_NODE, SMALL_NODE = {"num_cpus": 3}, {"num_cpus": 1}
WORKERS = 4
SETTINGS = {
    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # How often Ray looks after its workers; by default every two seconds.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    # How long Ray waits for survivors that hang in a collective with a dead one; by default half a minute.
    "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S": "2",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        memory = {"object_store_memory": 100 * 2**20}
        made = Cluster(initialize_head=True, head_node_args={**LARGE_NODE, **memory, "include_dashboard": False})
        try:
            made.add_node(**SMALL_NODE, **memory)
            ray.init(address=made.address, log_to_driver=False)
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


def fit(folder: Path, mode: str = "sync", max_failures: int = 0) -> dict[str, Any]:
    """The hand-written loop on four workers. Returns the main process's final state, and where it started."""
    config = {"folder": str(folder), "mode": mode}
    run = RunConfig(
        name="own", storage_path=str(folder / "ray"), failure_config=FailureConfig(max_failures=max_failures)
    )
    trainer = TorchTrainer(
        ray_jobs.own_loop,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=run,
    )
    return trainer.fit().return_value


def made(folder: Path, *orders: str) -> Path:
    folder.mkdir()
    for order in orders:
        (folder / order).touch()
    return folder


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Any]:
    """The final state of a hand-written loop that nobody disturbed, and its log."""
    folder = tmp_path_factory.mktemp("undisturbed")
    state = fit(folder)
    assert state.pop("start") == 0
    return state, tiny.read_log(str(folder / "log"), WORKERS)


@pytest.mark.parametrize(
    ("mode", "orders", "last_start"),
    [
        ("sync", ["SIGKILL-2-7", "SIGKILL-0-10"], 8),
        ("async", ["SIGTERM-3-11"], 8),
    ],
)
def test_workers_that_die_change_nothing(
    undisturbed: tuple[dict[str, Any], Any], tmp_path: Path, mode: str, orders: list[str], last_start: int
) -> None:
    folder = made(tmp_path / "job", *orders)
    # Not one failure more than there are signals: a start that finds the folder still held would be one.
    state = fit(folder, mode, max_failures=len(orders))
    assert {path.name for path in folder.glob("done-*")} == {f"done-{order}" for order in orders}
    assert state.pop("start") == last_start
    assert state == undisturbed[0]
    log = tiny.read_log(str(folder / "log"), WORKERS)  # a step that ran twice ran the same
    assert log == undisturbed[1]
    ids = [i for step in range(1, 13) for i in log[0][step][1]]
    assert sorted(ids[:50]) == list(range(50))
    messages = (folder / "messages-0").read_text()
    assert "waiting up to" not in messages
    assert "which is gone" in messages or "SIGKILL-0-10" not in orders


def job_file(folder: Path, name: str = "job", mode: str = "sync", **trainer: Any) -> Path:
    """A job of 12 steps that saves every 4, with a ledger."""
    saves = {"save_dir": str(folder / "checkpoints"), "period_steps": 4, "num_to_keep": 2, "mode": mode}
    config = jobs.training(
        folder,
        providers={"task": "tests.rig.ray_jobs:task"},
        batching={"global_batch_size": 12},
        data={"ledger": True},
        checkpointing=saves,
        **trainer,
    )
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_none=True)))
    return path


def run_example(path: Path, workers: Any = WORKERS, max_failures: int = 0, **scaling: Any) -> Any:
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        return EXAMPLE["trainer"](path, workers, [], max_failures, **scaling).fit().return_value
    finally:
        os.chdir(before)


def samples(folder: Path) -> dict[int, list[int]]:
    """The samples of each step, in the order of their places in the stream."""
    files = sorted(ledger_folder(folder / "checkpoints" / "run").glob("rank_*.bin"))
    rows = sorted((row for file in files for row in read_rows(file)), key=lambda row: row.position)
    found: dict[int, list[int]] = {}
    for row in rows:
        found.setdefault(row.step, []).extend(row.indices.tolist())
    return found


@pytest.fixture(scope="module")
def whole_job(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job file that ran undisturbed."""
    folder = tmp_path_factory.mktemp("whole")
    assert run_example(job_file(folder)) is None
    return folder


def test_a_job_file_whose_main_process_is_killed(whole_job: Path, tmp_path: Path) -> None:
    folder = made(tmp_path / "job", "SIGKILL-0-10")
    assert run_example(job_file(folder, mode="async"), max_failures=1) is None
    assert (folder / "done-SIGKILL-0-10").exists()
    assert jobs.state(folder, 12) == jobs.state(whole_job, 12)
    assert jobs.rows(folder) == jobs.rows(whole_job)
    assert samples(folder) == samples(whole_job)
    found = audit(folder / "checkpoints" / "run")
    assert (found.exact, found.samples, found.length) == (True, 12 * 12, 50)


def test_fewer_workers_after_a_node_was_lost(cluster: Cluster, whole_job: Path, tmp_path: Path) -> None:
    folder = made(tmp_path / "job", "hold-6")
    small = next(node for node in cluster.worker_nodes)

    def lose_a_node() -> None:
        deadline = time.monotonic() + 120
        while len(list(folder.glob("held-*"))) < WORKERS and time.monotonic() < deadline:
            time.sleep(0.05)
        cluster.remove_node(small, allow_graceful=False)
        (folder / "hold-6").unlink()

    losing = threading.Thread(target=lose_a_node)
    losing.start()
    try:
        assert run_example(job_file(folder), (3, WORKERS), max_failures=3) is None
    finally:
        losing.join(150)
        cluster.add_node(**SMALL_NODE, object_store_memory=100 * 2**20)
    starts = (folder / "starts").read_text().splitlines()
    assert sorted(starts) == ["0/3", "0/4", "1/3", "1/4", "2/3", "2/4", "3/4"]
    assert samples(folder) == samples(whole_job)
    assert audit(folder / "checkpoints" / "run").exact


def test_a_refusal_is_met_once(whole_job: Path) -> None:
    """The job was begun with another seed."""
    path = job_file(whole_job, "changed", determinism={"base_seed": 8}, total=16)
    starts = (whole_job / "starts").read_text()
    outcome = run_example(path, max_failures=-1)
    assert outcome["exit_code"] == GuardRefusedError.exit_code
    assert outcome["error"].startswith("GuardRefusedError: ")
    assert "seed" in outcome["error"]
    assert len((whole_job / "starts").read_text()) == len(starts) + 4 * len("0/4\n")


def test_an_error_that_is_raised_reaches_the_driver_as_it_is(cluster: Cluster, whole_job: Path) -> None:
    def refused(config: dict[str, Any]) -> None:
        raise GuardRefusedError("seed: 7 when this was begun, 8 now")

    run = RunConfig(storage_path=str(whole_job / "ray"), failure_config=FailureConfig(max_failures=0))
    with pytest.raises(WorkerGroupError) as caught:
        TorchTrainer(refused, scaling_config=ScalingConfig(num_workers=1), run_config=run).fit()
    assert isinstance(caught.value.worker_failures[0], GuardRefusedError)
