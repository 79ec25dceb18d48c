#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records PyTorch's losses over 20 training steps of small-cnn and AlexNet in tests/nn/data/losses.json.

Weights, images and labels are functions of integers that tests/nn/training.cpp computes too, so only the losses need to be kept:
  weights  nn/parameter_store.h's initialize() with seed 0: parameter i is drawn from Philox4x32-10 at (seed, i), here in NumPy
  images   see batch()
The same steps run in double precision as well: how far the two are apart says how much rounding matters, and is printed.
Run with PyTorch and NumPy installed.
"""
import json
import pathlib

import numpy
import torch

STEPS = 20
CLASSES = 10


def philox_uniform(seed, stream, count):
    """PhiloxSequence(seed, stream): the first `count` uniform numbers in [0, 1)."""
    block = numpy.arange((count + 3) // 4, dtype=numpy.uint64)
    low = numpy.uint64(0xFFFFFFFF)
    shift = numpy.uint64(32)
    x = [block & low, block >> shift, numpy.full_like(block, stream & 0xFFFFFFFF), numpy.full_like(block, stream >> 32)]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a = numpy.uint64(0xD2511F53) * x[0]
        b = numpy.uint64(0xCD9E8D57) * x[2]
        x = [(b >> shift) ^ x[1] ^ numpy.uint64(key[0]), b & low, (a >> shift) ^ x[3] ^ numpy.uint64(key[1]), a & low]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    words = numpy.stack(x, axis=1).reshape(-1)[:count]
    return (words >> numpy.uint64(8)).astype(numpy.float32) * numpy.float32(2.0**-24)


def initialize(net, flattened_chw):
    """Fills the parameters as Vitrine does; they are drawn in its layouts, (K, R, S, C) and (O, H, W, C) after the flatten."""
    index = 0
    first_linear = True
    for module in net.modules():
        if not isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)):
            continue
        weight = module.weight
        bound = numpy.float32(1.0 / numpy.sqrt(float(weight[0].numel())))
        for parameter in (weight, module.bias):
            values = torch.from_numpy((2 * philox_uniform(0, index, parameter.numel()) - numpy.float32(1)) * bound)
            if parameter.dim() == 4:
                k, c, r, s = parameter.shape
                values = values.reshape(k, r, s, c).permute(0, 3, 1, 2)
            elif parameter.dim() == 2 and first_linear:
                c, h, w = flattened_chw
                values = values.reshape(parameter.shape[0], h, w, c).permute(0, 3, 1, 2)
                first_linear = False
            parameter.data = values.reshape(parameter.shape).contiguous().to(parameter.dtype)
            index += 1


def batch(step, samples, size):
    """Pixels are integers 0..255, mapped to (2 * pixel - 255) / 255; the label sets the stripes' direction and width."""
    n = numpy.arange(samples).reshape(-1, 1, 1, 1)
    c = numpy.arange(3).reshape(1, -1, 1, 1)
    h = numpy.arange(size).reshape(1, 1, -1, 1)
    w = numpy.arange(size).reshape(1, 1, 1, -1)
    label = (3 * n + 7 * step) % CLASSES
    pixel = (h * (3 + 5 * label) + w * (50 - 4 * label) + 31 * c + 97 * n + 13 * step) % 256
    images = (2 * pixel - 255).astype(numpy.float32) / numpy.float32(255)
    return torch.from_numpy(images), torch.from_numpy(label.reshape(-1))


def small_cnn():
    nn = torch.nn
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(64 * 8 * 8, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def alexnet():
    """torchvision's, with dropout 0."""
    nn = torch.nn
    return nn.Sequential(nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(),
                         nn.MaxPool2d(3, 2), nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(), nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
                         nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2), nn.AdaptiveAvgPool2d(6), nn.Flatten(),
                         nn.Linear(9216, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, CLASSES))


def train(make, flattened_chw, samples, size, lr, momentum, dtype):
    net = make().to(dtype)
    initialize(net, flattened_chw)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=momentum)
    losses = []
    for step in range(STEPS):
        images, labels = batch(step, samples, size)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(images.to(dtype)), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    jobs = {"small-cnn": (small_cnn, (64, 8, 8), 16, 32, 0.05, 0.9), "alexnet": (alexnet, (256, 6, 6), 4, 227, 0.01, 0.9)}
    record = {"torch": torch.__version__}
    for name, (make, chw, samples, size, lr, momentum) in jobs.items():
        losses = train(make, chw, samples, size, lr, momentum, torch.float32)
        exact = train(make, chw, samples, size, lr, momentum, torch.float64)
        difference = max(abs(a - b) / b for a, b in zip(losses, exact))
        print(f"{name}: losses {losses}\n  largest relative difference to double precision {difference:.2e}", flush=True)
        record[name] = {"samples": samples, "image_size": size, "lr": lr, "momentum": momentum, "losses": losses}
    (pathlib.Path(__file__).parent / "data" / "losses.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
