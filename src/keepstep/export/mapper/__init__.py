"""The model state mapper: declared steps from one set of names and shapes to another."""

from keepstep.export.mapper.families import llama, qwen3_moe
from keepstep.export.mapper.hugging_face import mapper_for
from keepstep.export.mapper.mapper import Mapper
from keepstep.export.mapper.stream import stream
from keepstep.export.mapper.tensors import spec_of

__all__ = ["Mapper", "llama", "mapper_for", "qwen3_moe", "spec_of", "stream"]
