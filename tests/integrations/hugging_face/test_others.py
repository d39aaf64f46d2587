"""What others bring along: optimizers that keep state among their options, models, loaders and methods of their own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM, Trainer, TrainerCallback, set_seed

from keepstep.errors import ConfigError, SaveError
from keepstep.integrations.hugging_face import make_resumable
from tests.rig.trainers import Numbers, Ran, TinyModel, arguments, assert_twins, collate, run, tiny_model, tiny_trainer


class Counting(torch.optim.SGD):
    """Keeps a count among its options, as some well-known optimizers do, and its steps depend on it."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        for group in self.param_groups:
            group["k"] = 0

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["k"] += 1
            group["weight_decay"] = 0.001 * group["k"]
        return super().step(closure)


class Halve(TrainerCallback):
    """Changes an option once, by hand."""

    def on_step_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **more: Any) -> None:
        if state.global_step == 4:
            for group in optimizer.param_groups:
                group["momentum"] = 0.5


def test_state_among_an_optimizers_options_stays(tmp_path: Path) -> None:
    def build(folder: Path, callbacks: Any) -> Any:
        set_seed(3)
        model = tiny_model()
        optimizer = Counting(model.parameters())
        return Trainer(
            model=model,
            args=arguments(folder, max_steps=12),
            train_dataset=Numbers(),
            data_collator=collate,
            callbacks=[*callbacks, Halve()],
            optimizers=(optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12)),
        )

    whole = run(build, tmp_path / "whole")
    run(build, tmp_path / "run", stop=8)
    assert_twins(whole, run(build, tmp_path / "run", resume=True), 5)


def test_a_mixture_of_experts_is_saved_as_it_is_loaded(tmp_path: Path) -> None:
    """transformers converts its weights to other names on the way out, and its Trainer not back on the way in."""

    def build(folder: Path, callbacks: Any) -> Any:
        set_seed(3)
        model = MixtralForCausalLM(
            MixtralConfig(
                vocab_size=100,
                hidden_size=16,
                intermediate_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_key_value_heads=2,
                num_local_experts=2,
                max_position_embeddings=32,
                bos_token_id=0,
                eos_token_id=0,
            )
        )
        return tiny_trainer(folder, callbacks=callbacks, model=model, max_steps=12)

    def without_index(features: Any) -> Any:
        batch = collate(features)
        return {name: held for name, held in batch.items() if name != "index"}

    def built(folder: Path, callbacks: Any) -> Any:
        trainer = build(folder, callbacks)
        trainer.data_collator = without_index
        return trainer

    whole = run(built, tmp_path / "whole")
    run(built, tmp_path / "run", stop=8)
    assert_twins(whole, run(built, tmp_path / "run", resume=True), 5)
    read = MixtralForCausalLM.from_pretrained(tmp_path / "whole" / "checkpoint-10")
    assert sum(one.numel() for one in read.parameters()) == sum(
        one.numel() for name, one in whole.trainer.model.named_parameters()
    )


class OwnBatches(Trainer):
    """Has a reading of its own that does not call the base class's."""

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, *more: Any) -> Any:
        batches = []
        for _ in range(num_batches):
            try:
                batches.append(next(epoch_iterator))
            except StopIteration:
                break
        return batches, None


class OwnSave(Trainer):
    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        return


class NoWeights(Trainer):
    def save_model(self, *args: Any, **kwargs: Any) -> None:
        return


def test_reading_of_its_own_is_exact_too(tmp_path: Path) -> None:
    def build(folder: Path, callbacks: Any) -> Any:
        return tiny_trainer(folder, callbacks=callbacks, kind=OwnBatches, dataset=Numbers(draws=True))

    whole = run(build, tmp_path / "whole")
    run(build, tmp_path / "run", stop=18)
    assert_twins(whole, run(build, tmp_path / "run", resume=True), 15)


def test_a_save_that_passes_keepstep_by_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="OwnSave has a _save_checkpoint of its own"):
        run(lambda folder, callbacks: tiny_trainer(folder, callbacks=callbacks, kind=OwnSave), tmp_path)


def test_a_checkpoint_without_weights_is_none(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match="has written no weights"):
        run(lambda folder, callbacks: tiny_trainer(folder, callbacks=callbacks, kind=NoWeights), tmp_path)
    assert not list(tmp_path.glob("checkpoint-*"))


class Peek(TrainerCallback):
    """Looks at a batch, as callbacks do that log examples."""

    def on_step_end(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **more: Any) -> None:
        train_dataloader.dataset[3]


def test_a_loader_is_given_back_as_it_was_and_a_look_changes_nothing(tmp_path: Path) -> None:
    def peeking(folder: Path, callbacks: Any) -> Any:
        return tiny_trainer(folder, callbacks=[*callbacks, Peek()], dataset=Numbers(draws=True), max_steps=10)

    def usual(folder: Path, callbacks: Any) -> Any:
        return tiny_trainer(folder, callbacks=callbacks, dataset=Numbers(draws=True), max_steps=10)

    assert run(peeking, tmp_path / "a").seen == run(usual, tmp_path / "b").seen
    trainer = tiny_trainer(tmp_path / "c", max_steps=3)
    loader = trainer.get_train_dataloader()
    dataset, sampler = loader.dataset, loader.batch_sampler.sampler
    trainer.get_train_dataloader = lambda: loader
    make_resumable(trainer, handle_signals=False)
    trainer.train()
    assert trainer.get_train_dataloader() is loader
    assert loader.dataset is dataset
    assert loader.batch_sampler.sampler is sampler
    assert isinstance(run(usual, tmp_path / "d"), Ran)


class Hungry(TinyModel):
    """Finds no memory for more than two samples."""

    def forward(self, input_ids: Any = None, **more: Any) -> Any:  # type: ignore[override]
        if self.training and len(self.seen) == 3 and len(input_ids) > 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate all of it")
        return super().forward(input_ids=input_ids, **more)


def test_a_trainer_that_starts_over_with_smaller_batches_is_its_own_twin(tmp_path: Path) -> None:
    def build(folder: Path, callbacks: Any) -> Any:
        set_seed(3)
        model = Hungry(tiny_model().config)
        model.seen = []
        return tiny_trainer(
            folder,
            callbacks=callbacks,
            model=model,
            dataset=Numbers(draws=True),
            auto_find_batch_size=True,
            max_steps=40,
            save_steps=10,
        )

    whole = run(build, tmp_path / "whole")
    assert [len(samples) for samples, *_ in whole.seen[:5]] == [4, 4, 4, 2, 2]
    run(build, tmp_path / "run", stop=38)
    resumed = run(build, tmp_path / "run", resume=True)
    assert len(resumed.seen) == 10
    assert resumed.seen == whole.seen[-10:]
