from collections import namedtuple

import torch

from keepstep.data.device import to_device


def test_tensors_in_containers_move_and_all_else_stays() -> None:
    Pair = namedtuple("Pair", "left right")
    data = {"a": [torch.ones(2), "text"], "b": (torch.zeros(1), 3), "c": Pair(torch.ones(1), None)}
    moved = to_device(data, torch.device("meta"))
    assert moved["a"][0].device.type == moved["b"][0].device.type == moved["c"].left.device.type == "meta"
    assert (moved["a"][1], moved["b"][1], moved["c"].right) == ("text", 3, None)
    assert type(moved["c"]) is Pair
