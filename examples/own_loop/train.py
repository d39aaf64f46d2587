"""Exact resume in a hand-written loop: learn to add two digits. Kill it whenever you like, and start it again.

python examples/own_loop/train.py
"""

import logging

import torch
from torch import nn

import keepstep

TOTAL_STEPS, BATCH = 1000, 20


class Digits:
    """All pairs of digits in a new order for each epoch. The position is state, so a resume goes on inside an epoch."""

    def __init__(self) -> None:
        self.position = 0

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        epoch, offset = divmod(self.position, 100)
        order = torch.randperm(100, generator=torch.Generator().manual_seed(epoch))
        pairs = order[offset : offset + BATCH]
        self.position += BATCH
        first, second = pairs // 10, pairs % 10
        return torch.cat([nn.functional.one_hot(n, 10) for n in (first, second)], dim=1).float(), first + second

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 19))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, TOTAL_STEPS)
    data = Digits()

    state = keepstep.JobState(model=model, optimizer=optimizer, lr_scheduler=scheduler, data=data)
    config = keepstep.CheckpointingConfig(save_dir="runs/own_loop", period_steps=100, num_to_keep=2)
    with keepstep.Checkpointer(config, state, run_name="digits", total_steps=TOTAL_STEPS) as checkpointer:
        start = checkpointer.resume()
        for step in range(start + 1, TOTAL_STEPS + 1):
            inputs, sums = data.batch()
            loss = nn.functional.cross_entropy(model(inputs), sums)
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            checkpointer.save_if_due(step)
            if checkpointer.stop_requested:
                return
    print(f"sum of all weights after step {TOTAL_STEPS}: {sum(p.sum().item() for p in model.parameters())!r}")


if __name__ == "__main__":
    main()
