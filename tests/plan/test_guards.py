"""What a difference between run records does to a resume."""

import re
from typing import Any

import pytest

from keepstep.config.checkpointing import GUARDED_FIELDS, CheckpointingConfig
from keepstep.plan.guard_text import brief, refusal, table
from keepstep.plan.guards import RULES, UNKNOWN, Accepted, GuardFinding, Policy, Wishes, judge, refused

A, B = "a" * 64, "b" * 64
RECORD: dict[str, Any] = {
    "dataset_sha256": A,
    "dataset_parts": {"rows": "1", "size": "2"},
    "base_weights": A[:32],
    "base_revision": "main",
    "tokenizer_sha256": A,
    "seed": 7,
    "global_batch_size": 8,
    "world_size": 4,
    "data_parallel": 4,
    "mesh": {"data_parallel_shard": 4},
    "elastic": True,
    "is_one_pass": False,
    "git_commit": "c0ffee",
    "git_diff_sha256": None,
    "python": "3.11.7",
    "torch": "2.13.0",
    "transformers": None,
    "trl": None,
    "numpy": "2.4.6",
    "keepstep": "0.1.0",
    "threads": 2,
    "cpu_capability": "AVX512",
    "gpu": None,
    "config": {
        "mesh": {"tensor_parallel": 1},
        "providers": {"model": "a:b", "task": "a:t"},
        "trainer": {
            "run": {"name": "exp"},
            "total_steps": 100,
            "batching": {"global_batch_size": 8, "microbatch_size": 2},
            "determinism": {"base_seed": 7},
            "optimizer": {"lr": 0.1, "weight_decay": 0.0},
            "data": {"shuffle": True, "num_workers": 0},
            "logging": {"period_steps": 1},
            "checkpointing": {"save_dir": "/home/a", "period_steps": 10},
            "export_to": None,
            "max_gradient_norm": None,
        },
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The record with one value changed, by its dotted path."""

    def put(held: Any, names: list[str]) -> Any:
        if not names:
            return value
        return {**held, names[0]: put(held[names[0]], names[1:])}

    result: dict[str, Any] = put(RECORD, path.split("."))
    return result


@pytest.mark.parametrize(
    ("path", "value", "policy"),
    [
        ("dataset_sha256", B, "refuse"),
        ("base_weights", B[:32], "refuse"),
        ("base_revision", "v2", "warn"),
        ("tokenizer_sha256", B, "refuse"),
        ("seed", 8, "refuse"),
        ("global_batch_size", 16, "refuse"),
        ("git_commit", "decade", "warn"),
        ("git_diff_sha256", B, "warn"),
        ("python", "3.12.0", "warn"),
        ("torch", "2.14.0", "warn"),
        ("numpy", "3.0", "warn"),
        ("keepstep", "0.2.0", "warn"),
        ("threads", 4, "warn"),
        ("cpu_capability", "AVX2", "warn"),
        ("gpu", "H200", "warn"),
        ("config.providers.model", "a:c", "warn"),
        ("config.trainer.total_steps", 200, "accept"),
        ("config.trainer.batching.microbatch_size", 4, "warn"),
        ("config.trainer.optimizer.lr", 0.2, "accept"),
        ("config.trainer.optimizer.weight_decay", 0.2, "warn"),
        ("config.trainer.data.shuffle", False, "refuse"),
        ("config.trainer.max_gradient_norm", 1.0, "warn"),
    ],
)
def test_each_field_has_its_policy(path: str, value: Any, policy: str) -> None:
    (finding,) = judge(RECORD, changed(path, value))
    assert (finding.field, finding.policy.value) == (path, policy)
    assert finding.effect


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("config.trainer.checkpointing.save_dir", "/home/b"),
        ("config.trainer.checkpointing.period_steps", 20),
        ("config.trainer.logging.period_steps", 5),
        ("config.trainer.data.num_workers", 4),
        ("config.trainer.run.name", "exp.fork-1"),
        ("config.trainer.export_to", "x"),
        ("config.trainer.determinism.base_seed", 8),  # judged as `seed`
        ("transformers", "5.0"),  # installed since; what is not used makes no difference
    ],
)
def test_places_periods_retention_and_logging_are_neutral(path: str, value: Any) -> None:
    assert judge(RECORD, changed(path, value)) == ()


def test_the_same_record_has_no_differences_and_an_older_one_is_compared_in_what_it_knows() -> None:
    assert judge(RECORD, RECORD) == ()
    assert judge({}, RECORD) == ()
    assert [f.field for f in judge({"seed": 7, "torch": "2.9.0"}, RECORD)] == ["torch"]


@pytest.mark.parametrize(
    ("elastic", "parallel", "policy"),
    [(True, 2, "accept"), (False, 2, "refuse"), (None, 2, "warn"), (False, 4, "accept")],
)
def test_another_world_is_judged_by_whether_the_job_is_elastic(
    elastic: bool | None, parallel: int, policy: str
) -> None:
    now = {**RECORD, "world_size": 2, "data_parallel": parallel, "elastic": elastic}
    (finding,) = judge(RECORD, now)
    assert (finding.field, finding.saved, finding.now, finding.policy.value) == ("world_size", "4", "2", policy)


def test_an_inference_job_may_take_another_batch_size() -> None:
    now = {**RECORD, "is_one_pass": True, "global_batch_size": 16}
    assert [f.policy for f in judge(RECORD, now)] == [Policy.ACCEPT]


def test_what_is_not_known_is_said_and_refuses_nothing() -> None:
    for saved, now in ((UNKNOWN, A), (A, UNKNOWN)):
        (finding,) = judge({**RECORD, "dataset_sha256": saved}, {**RECORD, "dataset_sha256": now})
        assert finding.policy is Policy.WARN
        assert "cannot be compared" in finding.effect
    assert judge({**RECORD, "dataset_sha256": UNKNOWN}, {**RECORD, "dataset_sha256": UNKNOWN}) == ()


def test_the_configuration_sets_policies() -> None:
    now = changed("dataset_sha256", B)
    assert judge(RECORD, now, Wishes({"dataset_sha256": "accept"}))[0].policy is Policy.ACCEPT
    now = changed("torch", "2.14.0")
    assert judge(RECORD, now, Wishes({"torch": "refuse"}))[0].policy is Policy.REFUSE
    now = changed("config.trainer.total_steps", 7)
    assert judge(RECORD, now, Wishes({"config.trainer.total_steps": "refuse"}))[0].policy is Policy.REFUSE


class TestAccept:
    def policy(self, *accept: str, before: tuple[Accepted, ...] = ()) -> Policy:
        return judge(RECORD, changed("dataset_sha256", B), Wishes(accept=accept, accepted=before))[0].policy

    def test_binds_to_one_value(self) -> None:
        assert self.policy(f"dataset_sha256={B}") is Policy.ACCEPT
        assert self.policy(f"dataset_sha256={B[:8]}") is Policy.ACCEPT
        assert self.policy(f"dataset_sha256={B[:7]}") is Policy.REFUSE
        assert self.policy(f"dataset_sha256={A}") is Policy.REFUSE
        assert self.policy("dataset_sha256=") is Policy.REFUSE
        assert self.policy("seed=8") is Policy.REFUSE

    def test_without_a_value_it_binds_to_the_first_that_it_meets(self) -> None:
        assert self.policy("dataset_sha256") is Policy.ACCEPT
        assert self.policy("dataset_sha256", before=(Accepted("dataset_sha256", A, B),)) is Policy.ACCEPT
        assert self.policy("dataset_sha256", before=(Accepted("dataset_sha256", A, "c" * 64),)) is Policy.REFUSE

    def test_what_was_accepted_stays_so(self) -> None:
        assert self.policy(before=(Accepted("dataset_sha256", A, B),)) is Policy.ACCEPT
        assert self.policy(before=(Accepted("dataset_sha256", B, B),)) is Policy.REFUSE

    def test_any_field_can_be_accepted_by_what_the_message_says(self) -> None:
        for path, value in (("seed", 8), ("config.trainer.data.shuffle", False), ("tokenizer_sha256", B)):
            (finding,) = judge(RECORD, changed(path, value))
            flag = finding.to_accept.removeprefix("--accept ")
            assert judge(RECORD, changed(path, value), Wishes(accept=[flag]))[0].policy is Policy.ACCEPT


def test_a_refusal_says_everything_at_once() -> None:
    now = {**changed("dataset_sha256", B), "seed": 8, "torch": "2.14.0", "dataset_parts": {"rows": "9", "size": "2"}}
    findings = judge(RECORD, now)
    assert [finding.policy.value for finding in findings] == ["refuse", "refuse", "warn"]
    text = refusal("runs/exp/save-5", findings)
    assert "runs/exp/save-5" in text
    assert "2 differences stand against it" in text
    assert "Nothing was loaded or written" in text
    assert re.search(r"dataset_sha256 +a{12}… +b{12}… +refuse +samples would be missed .*\(changed: rows\)", text)
    assert f"--accept dataset_sha256={B} --accept seed=8" in text
    assert len(refused(findings)) == 2


def test_what_is_shown_cannot_drive_a_terminal() -> None:
    finding = GuardFinding("git_commit", "\x1b[2J\nx", "y" * 300, Policy.WARN, "")
    assert "\x1b" not in table([finding])
    assert table([finding]).count("\n") == 1
    assert len(brief("y" * 300)) < 40
    saved = {**RECORD, "dataset_parts": {"\x1b]0;a": "1"}, "config": {"\x1b]0;b": 1}, "dataset_sha256": B}
    text = refusal("save-1", judge(saved, {**RECORD, "config": {"\x1b]0;b": 2}}))
    assert "]0;a" in text
    assert "]0;b" in text
    assert "\x1b" not in text


def test_a_world_of_the_same_size_is_accepted_by_how_it_is_laid_out() -> None:
    now = {**RECORD, "elastic": False, "data_parallel": 2, "mesh": {"data_parallel_shard": 2, "tensor_parallel": 2}}
    (finding,) = judge(RECORD, now)
    assert finding.policy is Policy.REFUSE
    assert finding.saved != finding.now
    flag = finding.to_accept.removeprefix("--accept ").replace("'", "")
    assert judge(RECORD, now, Wishes(accept=[flag]))[0].policy is Policy.ACCEPT
    assert judge(RECORD, now, Wishes(accept=["world_size=4"]))[0].policy is Policy.REFUSE


def test_digests_by_other_rules_are_not_compared() -> None:
    (finding,) = judge({**RECORD, "fingerprint_rules": 1}, {**changed("dataset_sha256", B), "fingerprint_rules": 2})
    assert finding.policy is Policy.WARN


def test_what_a_data_set_declares_is_compared_whatever_the_rules() -> None:
    saved = {**RECORD, "dataset_sha256": "declared:a", "fingerprint_rules": 1}
    (finding,) = judge(saved, {**RECORD, "dataset_sha256": "declared:b", "fingerprint_rules": 2})
    assert finding.policy is Policy.REFUSE


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"end": 1}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "record",
    [
        {"dataset_sha256": [1], "seed": {}, "mesh": 3, "config": [], "world_size": None, "dataset_parts": 4},
        {"config": {"trainer": {"total_steps": {"a": 1}}}, "global_batch_size": "x", "data_parallel": []},
        {"config": nested(5000), "seed": [nested(5000)]},
    ],
)
def test_a_record_with_other_types_is_compared_and_does_no_harm(record: dict[str, Any]) -> None:
    for saved in (record, {**RECORD, **record}):
        findings = judge(saved, RECORD)
        assert all(finding.field in RULES or finding.field.startswith("config.") for finding in findings)
        assert table(findings).count("\n") == len(findings)
    assert findings


def test_every_rule_has_its_name_in_the_configuration() -> None:
    assert tuple(RULES) == GUARDED_FIELDS
    CheckpointingConfig(save_dir="x", period_steps=1, guards={"seed": "warn", "config.trainer.total_steps": "refuse"})
    for wrong in ({"sed": "warn"}, {"seed": "perhaps"}):
        with pytest.raises(ValueError, match=r"sed|perhaps"):
            CheckpointingConfig(save_dir="x", period_steps=1, guards=wrong)  # type: ignore[arg-type]
