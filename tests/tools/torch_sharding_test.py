#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""zero1 trains as PyTorch's ZeroRedundancyOptimizer, zero3 as its fully_shard (FSDP2) and zero2 as fully_shard that keeps parameters from forward to backward, on two CPU
devices, from the same weights and batches.

PyTorch runs on Gloo in two processes. Its noise is the difference between DistributedDataParallel and one process. Vitrine's losses and weights may differ
from those of PyTorch's sharded training by four times as much; with a learning rate that is 0.1 % larger they must differ by more.

usage: torch_sharding_test.py VITRINE     exits with 77 without PyTorch
"""
import datetime
import json
import pathlib
import sys
import tempfile

from torch_files_test import export, read_safetensors, use_python_with_torch, vitrine, write_images, write_safetensors

use_python_with_torch("import torch; from torch.distributed.fsdp import fully_shard; torch.cpu.Stream().record_event")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: E402

SIZE, BATCH, STEPS, RANKS = 16, 24, 20, 2
RATE, DECAY = 1e-3, 0.01
MODES = {"zero1": "ZeroRedundancyOptimizer", "zero2": "fully_shard(reshard_after_forward=False)", "zero3": "fully_shard"}


def make_net():
    nn = torch.nn
    torch.manual_seed(7)
    return nn.Sequential(nn.Conv2d(1, 9, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(9, 20, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(180, 131), nn.ReLU(), nn.Linear(131, 4))


def train(side, images, labels):
    """Losses of all steps and the final weights; every rank has its part of each batch, or all of it on one process."""
    net, adamw = make_net(), torch.optim.AdamW
    rank, ranks = (0, 1) if side == "one process" else (dist.get_rank(), RANKS)
    parameters = net.parameters
    fully_sharded = side.startswith("fully_shard")
    if fully_sharded:
        mesh, reshard = dist.init_device_mesh("cpu", (RANKS,)), side == "fully_shard"
        for layer in net:
            if list(layer.parameters()):
                fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
        module = fully_shard(net, mesh=mesh, reshard_after_forward=reshard)
    else:
        module = net if ranks == 1 else torch.nn.parallel.DistributedDataParallel(net)
    optimizer = (ZeroRedundancyOptimizer(parameters(), optimizer_class=adamw, lr=RATE, weight_decay=DECAY) if side == "ZeroRedundancyOptimizer"
                 else adamw(parameters(), lr=RATE, weight_decay=DECAY))
    losses, part = [], BATCH // ranks
    for step in range(STEPS):
        rows = slice(step * BATCH + rank * part, step * BATCH + (rank + 1) * part)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(images[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        mean = loss.detach().double()
        if ranks > 1:
            dist.all_reduce(mean)
        losses.append(mean.item() / ranks)
    weights = {name: (value.full_tensor() if fully_sharded else value).detach() for name, value in net.named_parameters()}
    return torch.tensor(losses), weights


def run_rank(rank, folder, images, labels):
    dist.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=RANKS, timeout=datetime.timedelta(seconds=120))
    results = {side: train(side, images, labels) for side in ("one process", "DistributedDataParallel", *MODES.values())}
    if rank == 0:
        torch.save(results, f"{folder}/results")
    dist.destroy_process_group()


def train_vitrine(mode, folder, rate=RATE):
    log, weights = folder / "log.jsonl", folder / "trained.safetensors"
    vitrine("train", "--model", folder / "net.json", "--data", f"idx:{folder}", "--devices", "cpu:0-1", "--threads-per-device", 1, "--mode", mode,
            "--batch-size", BATCH, "--no-shuffle", "--epochs", 1, "--no-eval", "--optimizer", "adamw", "--lr", rate, "--weight-decay", DECAY,
            "--bucket-mb", 0.05, "--init-weights", folder / "weights.safetensors", "--save", weights, "--log", log, "--log-every", 1)
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    log.unlink()
    return torch.tensor([row["loss"] for row in rows if row["kind"] == "step"]), read_safetensors(weights)


def differences(a, b):
    """The largest of losses, and the mean of weights: AdamW's step of a weight whose gradient is only rounding has any sign."""
    assert a[0].shape == b[0].shape and len(a[0]) == STEPS and a[1].keys() == b[1].keys()
    weights = torch.cat([(a[1][name] - b[1][name]).abs().flatten() for name in a[1]])
    return (a[0] - b[0]).abs().max().item(), weights.mean().item()


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (images, labels), _ = write_images(folder, BATCH * STEPS, SIZE)
        net = make_net()
        export(net, (1, SIZE, SIZE), folder / "net.json")
        write_safetensors(folder / "weights.safetensors", net.state_dict())
        torch.multiprocessing.start_processes(run_rank, (name, images, labels), RANKS, start_method="fork")
        results = torch.load(folder / "results")
        noise = differences(results["one process"], results["DistributedDataParallel"])
        print(f"PyTorch {torch.__version__}, one process and DistributedDataParallel: losses differ by {noise[0]:.1e}, weights by {noise[1]:.1e}")

        def is_near(what, own, side):
            difference = differences(own, results[side])
            print(f"{what} and {side}: losses differ by {difference[0]:.1e}, weights by {difference[1]:.1e}", flush=True)
            return all(own <= 4 * of_torch for own, of_torch in zip(difference, (max(noise[0], torch.finfo(torch.float32).eps), noise[1])))

        for mode, side in MODES.items():
            assert is_near(mode, train_vitrine(mode, folder), side), mode
            assert not is_near(f"{mode} at a larger rate", train_vitrine(mode, folder, RATE * 1.001), side), mode


if __name__ == "__main__":
    main()
