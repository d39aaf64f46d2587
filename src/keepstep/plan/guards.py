"""Compares what a run was begun with and what it would go on with, and says what is to be done about differences."""

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from keepstep.errors import ConfigError
from keepstep.plan.config_rules import DECIDED_ELSEWHERE, rule_of

UNKNOWN = "unknown"
DECLARED = "declared:"
CONFIG = "config."
_SHORTEST_PREFIX = 8
_HEX = re.compile(r"[0-9a-f]{32,}")


class Policy(Enum):
    """What a difference does to a resume."""

    REFUSE = "refuse"
    WARN = "warn"
    ACCEPT = "accept"


@dataclass(frozen=True)
class Rule:
    """What a field that differs means. `effect`: what it would do to the run."""

    policy: Policy
    effect: str


_OTHER_BITS = "results may differ in the last bits"
RULES: Mapping[str, Rule] = {
    "dataset_sha256": Rule(Policy.REFUSE, "samples would be missed or seen twice"),
    "base_weights": Rule(Policy.REFUSE, "the run would go on from other base weights"),
    "base_revision": Rule(Policy.WARN, "the weights are the same; run.json goes on naming the first revision"),
    "tokenizer_sha256": Rule(Policy.REFUSE, "the same text would become other tokens"),
    "seed": Rule(Policy.REFUSE, "samples would come in another order"),
    "global_batch_size": Rule(Policy.REFUSE, "another number of steps for each epoch, so another learning-rate curve"),
    "world_size": Rule(Policy.REFUSE, "another effective batch, so another number of steps for each epoch"),
    "git_commit": Rule(Policy.WARN, "the code is another"),
    "git_diff_sha256": Rule(Policy.WARN, "uncommitted changes of the code are others"),
    "python": Rule(Policy.WARN, _OTHER_BITS),
    "torch": Rule(Policy.WARN, _OTHER_BITS),
    "transformers": Rule(Policy.WARN, _OTHER_BITS),
    "trl": Rule(Policy.WARN, _OTHER_BITS),
    "numpy": Rule(Policy.WARN, _OTHER_BITS),
    "keepstep": Rule(Policy.WARN, "another version reads this checkpoint"),
    "threads": Rule(Policy.WARN, "sums on the CPU are made in another order: results differ in the last bits"),
    "cpu_capability": Rule(Policy.WARN, "the CPU has other instructions: results differ in the last bits"),
    "gpu": Rule(Policy.WARN, _OTHER_BITS),
}
_PACKAGES = frozenset({"transformers", "trl"})


@dataclass(frozen=True)
class Accepted:
    """A difference that was accepted once: it is so again, and no other."""

    field: str
    saved: str
    now: str


@dataclass(frozen=True)
class Wishes:
    """What is wanted about differences.

    Attributes:
        policies: by field, from the configuration.
        accept: `field=value`, or `field` alone, from the command line.
        accepted: those that were accepted before in this run.
    """

    policies: Mapping[str, str] = field(default_factory=dict)
    accept: Sequence[str] = ()
    accepted: Sequence[Accepted] = ()


@dataclass(frozen=True)
class GuardFinding:
    """One difference.

    Attributes:
        field: its name in run.json; `config.<path>` for a value of the configuration.
        saved, now: both values, as text.
        policy: what is done about it.
        effect: what it would do to the run.
        why: where the policy comes from, when it is not the default; or why it was not accepted.
    """

    field: str
    saved: str
    now: str
    policy: Policy
    effect: str
    why: str = ""

    @property
    def to_accept(self) -> str:
        """The argument that accepts this value and no other."""
        return f"--accept {self.field}={_quoted(self.now)}"


def judge(saved: Mapping[str, Any], now: Mapping[str, Any], wishes: Wishes = Wishes()) -> tuple[GuardFinding, ...]:
    """Compare two run records, field by field.

    Args:
        saved: the record of the checkpoint. A field that it lacks was not known to the version that wrote it.
        now: the record of this job.
        wishes: what is wanted.

    Returns:
        The differences, refused ones first.
    """
    findings = [
        _decided(name, _value(name, saved, now), _value(name, now, saved), _rule(name, saved, now), wishes)
        for name in RULES
        if name in saved and name in now and _differs(name, saved, now)
    ]
    findings += [
        _decided(CONFIG + path, before, after, Rule(Policy(policy), effect), wishes)
        for path, before, after in _changed(saved, now)
        for policy, effect in [rule_of(path)]
    ]
    order = list(Policy)
    return tuple(sorted(findings, key=lambda finding: order.index(finding.policy)))


def check_wishes(accept: Iterable[str]) -> None:
    """Whether these can be accepted: `field=value` or `field`. Raises ConfigError for a field that is not compared."""
    for wish in accept:
        name = wish.partition("=")[0]
        if name not in RULES and not name.startswith(CONFIG):
            near = difflib.get_close_matches(name, RULES, n=1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise ConfigError(f"accept {wish}: {name} is not compared{hint} Known: {', '.join(RULES)}, config.<path>")


def refused(findings: Iterable[GuardFinding]) -> tuple[GuardFinding, ...]:
    """Those that stand against a resume."""
    return tuple(finding for finding in findings if finding.policy is Policy.REFUSE)


def shown(value: Any) -> str:
    """A value as text: strings as they are, all else as JSON."""
    try:
        return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    except RecursionError:
        return "nested too deeply to be shown"


def changed_parts(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Names of what differs in two data sets, where both say what they are made of."""
    before, after = saved.get("dataset_parts"), now.get("dataset_parts")
    if not isinstance(before, Mapping) or not isinstance(after, Mapping) or not before or not after:
        return []
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def _differs(name: str, saved: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    before, after = saved[name], now[name]
    if name in _PACKAGES and None in (before, after):
        return False  # installed or not: what is not used makes no difference
    if name in ("base_weights", "base_revision", "tokenizer_sha256", "dataset_sha256") and None in (before, after):
        return False  # nobody has told
    if name == "git_diff_sha256" and None in (saved.get("git_commit"), now.get("git_commit")):
        return False
    if name == "world_size":
        return bool(before != after or (saved.get("mesh") or {}) != (now.get("mesh") or {}))
    if name == "seed" or name == "global_batch_size":
        return None not in (before, after) and before != after
    return bool(before != after)


def _value(name: str, record: Mapping[str, Any], other: Mapping[str, Any]) -> Any:
    """What is shown of a field, and accepted: of a world of the same size, how its ranks are laid out."""
    if name != "world_size" or record[name] != other[name]:
        return record[name]
    mesh = record.get("mesh")
    axes = [f"{axis}={size}" for axis, size in mesh.items()] if isinstance(mesh, Mapping) else []
    return f"{shown(record[name])}: {', '.join(axes) or 'not laid out'}"


def _rule(name: str, saved: Mapping[str, Any], now: Mapping[str, Any]) -> Rule:
    rule = RULES[name]
    if name == "world_size":
        return _world_rule(saved, now)
    if UNKNOWN in (saved[name], now[name]) or (name == "git_commit" and None in (saved[name], now[name])):
        return Rule(Policy.WARN, "cannot be compared: one of both is not known")
    is_declared = name == "dataset_sha256" and any(str(one[name]).startswith(DECLARED) for one in (saved, now))
    is_by_other_rules = saved.get("fingerprint_rules") != now.get("fingerprint_rules") and not is_declared
    if name == "dataset_sha256" and is_by_other_rules:
        return Rule(Policy.WARN, "cannot be compared: another version of keepstep has digested it by other rules")
    if name == "dataset_sha256" and (parts := changed_parts(saved, now)):
        return Rule(rule.policy, f"{rule.effect} (changed: {', '.join(parts[:5])})")
    if name == "global_batch_size" and now.get("is_one_pass"):
        return Rule(Policy.ACCEPT, "the position is kept in samples, so each input is still processed once")
    if name == "seed" and now.get("is_one_pass"):
        return Rule(Policy.WARN, "what the model draws is drawn anew")
    return rule


def _world_rule(saved: Mapping[str, Any], now: Mapping[str, Any]) -> Rule:
    """Ranks may be others where the global batch stays the same: it is only divided anew."""
    before, after = (record.get("data_parallel", record.get("world_size")) for record in (saved, now))
    if before == after:
        return Rule(Policy.ACCEPT, "the same samples on another number of ranks: results may differ in the last bits")
    match now.get("elastic"):
        case True:
            return Rule(Policy.ACCEPT, "the same global batches, divided among other ranks")
        case False:
            return RULES["world_size"]
        case _:
            return Rule(Policy.WARN, f"{RULES['world_size'].effect}, unless the loop divides a global batch itself")


def _decided(name: str, saved: Any, now: Any, rule: Rule, wishes: Wishes) -> GuardFinding:
    before, after = shown(saved), shown(now)
    policy, why = rule.policy, ""
    if name in wishes.policies:
        policy, why = Policy(wishes.policies[name]), "set in checkpointing.guards"
    if policy is Policy.REFUSE:
        policy, why = _accepted(name, before, after, wishes) or (policy, why)
    return GuardFinding(name, before, after, policy, rule.effect, why)


def _accepted(name: str, saved: str, now: str, wishes: Wishes) -> tuple[Policy, str] | None:
    """How a refused difference stands to what was accepted, now and earlier."""
    if Accepted(name, saved, now) in wishes.accepted:
        return Policy.ACCEPT, "accepted before"
    why = ""
    for wish in wishes.accept:
        wanted, equals, value = wish.partition("=")
        if wanted != name:
            continue
        if equals and _is_meant(value, now):
            return Policy.ACCEPT, f"--accept {wish}"
        before = [one for one in wishes.accepted if one.field == name]
        if not equals and not before:
            return Policy.ACCEPT, f"--accept {wish}"
        other = value if equals else before[-1].now
        why = f"--accept {wish} is bound to {other[:16]}, and this is another value"
    return (Policy.REFUSE, why) if why else None


def _is_meant(value: str, now: str) -> bool:
    is_prefix = len(value) >= _SHORTEST_PREFIX and _HEX.fullmatch(now) is not None and now.startswith(value)
    return value == now or is_prefix


def _changed(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Values of the configuration that differ, by path; those that have a field of their own are left out."""
    if not isinstance(saved.get("config"), Mapping) or not isinstance(now.get("config"), Mapping):
        return []
    before, after = flatten(saved["config"]), flatten(now["config"])
    # Another version may know other keys; then a key that only one side has says nothing.
    is_same_version = saved.get("keepstep") == now.get("keepstep")
    paths = [path for path in (before | after) if is_same_version or (path in before and path in after)]
    paths = [path for path in paths if not any(rule.fullmatch(path) for rule in DECIDED_ELSEWHERE)]
    return [(p, before.get(p), after.get(p)) for p in paths if before.get(p) != after.get(p)]


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings as one, with dotted paths in their order; lists and empty mappings are values."""
    flat: dict[str, Any] = {}
    # No recursion: the record of a checkpoint may be nested as deeply as JSON is read.
    waiting: list[tuple[str, Any]] = [(str(name), value) for name, value in reversed(list(config.items()))]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, Mapping) and value:
            waiting += [(f"{path}.{name}", held) for name, held in reversed(list(value.items()))]
        else:
            flat[path] = value
    return flat


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[\w.:/+-]+", text) else "'" + text.replace("'", "'\\''") + "'"
