"""The base of all configuration models: frozen, unknown keys refused."""

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Section(BaseModel):
    """A part of the configuration. Immutable; a key that is not declared is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


# Of fields that hold numbers: without it true is 1.
NoBool = BeforeValidator(_no_bool)
