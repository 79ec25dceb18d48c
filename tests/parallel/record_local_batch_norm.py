#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records in tests/parallel/data/local_batch_norm.json what PyTorch's DataParallel computes with batch norm on two devices, for batch_norm_test.cpp.

Without GPUs its steps are made by hand (torch/nn/parallel/data_parallel.py): a replica for each half of the batch with the same parameters and its own
statistics, the loss over all outputs, gradients added up, and the running statistics of the first replica kept. Run with PyTorch installed.
"""
import copy
import json
import pathlib

import torch

SAMPLES, SIZE, CLASSES, STEPS, LR, MOMENTUM = 8, 5, 5, 3, 0.05, 0.9


def nhwc(tensor):
    return [float(f"{v:.9g}") for v in (tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor).flatten().tolist()]


def parameters_of(net):
    """In Vitrine's order and layouts."""
    conv, norm, _, fc = net
    columns = fc.weight.detach().reshape(CLASSES, -1, SIZE, SIZE)
    return [nhwc(p.detach()) for p in (conv.weight, conv.bias, norm.weight, norm.bias, columns, fc.bias)]


def main():
    torch.manual_seed(5)
    nn = torch.nn
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * SIZE * SIZE, CLASSES))
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([0.5, 1.5, 1.0, 0.75]))
        net[1].bias.copy_(torch.tensor([0.1, -0.2, 0.0, 0.3]))
    record = {"torch": torch.__version__, "samples": SAMPLES, "size": SIZE, "classes": CLASSES, "lr": LR, "momentum": MOMENTUM}
    record.update(start=parameters_of(net), steps=[])
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
    for _ in range(STEPS):
        # The halves differ, and so do their statistics.
        images = torch.randint(-999, 1000, (SAMPLES, 3, SIZE, SIZE)) / 1000.0
        images[SAMPLES // 2:] = images[SAMPLES // 2:] * 2 + 1
        labels = torch.randint(0, CLASSES, (SAMPLES,))
        other = copy.deepcopy(net)
        other.zero_grad()
        optimizer.zero_grad()
        first, second = images.chunk(2)
        loss = nn.functional.cross_entropy(torch.cat([net(first), other(second)]), labels)
        loss.backward()
        for parameter, replica in zip(net.parameters(), other.parameters()):
            parameter.grad += replica.grad
        optimizer.step()
        record["steps"].append({"images": nhwc(images), "labels": labels.tolist(), "loss": loss.item(), "parameters": parameters_of(net),
                                "running_mean": net[1].running_mean.tolist(), "running_var": net[1].running_var.tolist()})
    folder = pathlib.Path(__file__).parent / "data"
    folder.mkdir(exist_ok=True)
    (folder / "local_batch_norm.json").write_text(json.dumps(record, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
