"""The base of all configuration models: frozen, unknown keys refused."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the configuration. Immutable; a key that is not declared is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())
