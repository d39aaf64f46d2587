"""Pure decisions: no torch, no I/O, no clock. A shell elsewhere gathers the facts and applies what is decided."""
