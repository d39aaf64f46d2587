"""What the files of a Trainer's checkpoint hold is told from their names."""

from keepstep.plan.trainer_files import base_name, dcp_folders, is_archive, sort_out

_STATE = ("optimizer.pt", "scheduler.pt", "rng_state.pth")


def test_one_process() -> None:
    held = sort_out(("model.safetensors", "config.json", "scaler.pt", *_STATE))
    assert (held.weights, held.adapters, held.scaler) == (("model.safetensors",), (), ("scaler.pt",))
    assert (held.world_size, held.missing()) == (1, ())
    assert held.components == ("model", "optimizer", "lr_scheduler", "scaler", "rng")


def test_shards_with_an_index() -> None:
    shards = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    assert sort_out((*shards, "model.safetensors.index.json", *_STATE)).weights == (
        *shards,
        "model.safetensors.index.json",
    )


def test_adapters_lie_beside_or_in_a_folder_of_their_name() -> None:
    held = sort_out(("adapter_model.safetensors", "second/adapter_model.safetensors", *_STATE))
    assert held.adapters == ("adapter_model.safetensors", "second/adapter_model.safetensors")
    assert held.missing() == ()


def test_shards_of_fsdp() -> None:
    names = ("pytorch_model_fsdp_0/__0_0.distcp", "optimizer_0/__0_0.distcp", "scheduler.pt", "rng_state_0.pth")
    held = sort_out((*names, "rng_state_1.pth"))
    assert (held.missing(), held.world_size) == ((), 2)
    assert dcp_folders(names) == ("optimizer_0/", "pytorch_model_fsdp_0/")


def test_deepspeed_keeps_optimizer_and_scheduler_itself() -> None:
    names = ("global_step5/zero_pp_rank_0_mp_rank_00_optim_states.pt", "latest", "rng_state_0.pth", "rng_state_1.pth")
    held = sort_out(names)
    assert held.missing() == ()
    assert held.by_deepspeed
    assert not is_archive(names[0])
    assert is_archive("optimizer.pt")


def test_random_states_of_one_process_beside_those_of_ranks_do_not_count() -> None:
    held = sort_out(("rng_state.pth", "rng_state_0.pth", "rng_state_1.pth"))
    assert held.rng == ("rng_state_0.pth", "rng_state_1.pth")


def test_the_last_part_of_a_path_of_any_system() -> None:
    assert base_name("/a/b/checkpoint-5/") == base_name(r"C:\b\checkpoint-5") == base_name("checkpoint-5")
    assert base_name(None) == base_name("") == ""
