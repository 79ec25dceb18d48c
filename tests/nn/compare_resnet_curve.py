#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains resnet18-cifar on the first images of CIFAR-10 with PyTorch and with Vitrine, and prints the curves of both side by side.

Both start from the same weights (drawn by torchvision's rules), see the same batches in the same order, and use SGD with momentum, on the CPU or, with
--device cuda, on the first GPU, in f32 without TF32. The same training rounds differently in every library, and the differences grow with each step. So PyTorch trains twice, with contiguous images and with
channels_last ones: how far its two curves are apart is what can be asked of Vitrine's. Exit status 1 if a training loss of Vitrine's is farther from the
nearer of the two than four times that, and than 1 %.

usage: compare_resnet_curve.py [CIFAR10_FOLDER] [--vitrine build/release/bin/vitrine] [--samples 2000] [--epochs 4] [--batch-size 100] [--lr 0.02] [--device cpu]
The folder has data_batch_1.bin and test_batch.bin; without it, images are random. Run with PyTorch and NumPy installed; takes minutes on a CPU.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch

from record_resnet import resnet18
from record_torch import write_safetensors

MEAN = (0.4914, 0.4822, 0.4465)
DEVIATION = (0.2470, 0.2435, 0.2616)
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
TRAINING_IMAGES, TEST_IMAGES = 50000, 10000


def read_images(path, count):
    rows = numpy.fromfile(path, numpy.uint8, count * 3073).reshape(count, 3073)
    pixels = torch.from_numpy(rows[:, 1:].reshape(count, 3, 32, 32).astype(numpy.float32) / numpy.float32(255))
    shape = (1, 3, 1, 1)
    return (pixels - torch.tensor(MEAN).reshape(shape)) / torch.tensor(DEVIATION).reshape(shape), torch.from_numpy(rows[:, 0].astype(numpy.int64))


def initial_weights():
    torch.manual_seed(1)
    net = resnet18(10, 3, small_images=True)
    for module in net.modules():
        if isinstance(module, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return {name: value.clone() for name, value in net.state_dict().items()}


def curve_of_torch(weights, train, test, layout, o):
    net = resnet18(10, 3, small_images=True)
    net.load_state_dict(weights)
    net = net.to(device=o.torch_device, memory_format=layout)
    optimizer = torch.optim.SGD(net.parameters(), lr=o.lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    criterion = torch.nn.CrossEntropyLoss(reduction="sum")
    curve = []
    train, test = ([part.to(o.torch_device) for part in parts] for parts in (train, test))
    for _ in range(o.epochs):
        net.train()
        total = 0.0
        for first in range(0, len(train[1]), o.batch_size):
            images, labels = (part[first:first + o.batch_size] for part in train)
            optimizer.zero_grad()
            loss = criterion(net(images.contiguous(memory_format=layout)), labels)
            (loss / len(labels)).backward()
            optimizer.step()
            total += loss.item()
        net.eval()
        with torch.no_grad():
            logits = torch.cat([net(images.contiguous(memory_format=layout)) for images in test[0].split(o.batch_size)])
        curve.append((total / len(train[1]), criterion(logits, test[1]).item() / len(test[1]), (logits.argmax(1) == test[1]).double().mean().item()))
    return curve


def curve_of_vitrine(weights, o):
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "weights.safetensors")
        write_safetensors(file, weights, {"format": "pt"})
        normalize = "/".join(",".join(map(str, values)) for values in (MEAN, DEVIATION))
        command = [o.vitrine, "train", "--model", "resnet18-cifar", "--data", f"cifar10:{o.folder}", "--limit-samples", str(o.samples), "--no-shuffle",
                   "--normalize", normalize, "--batch-size", str(o.batch_size), "--epochs", str(o.epochs), "--optimizer", "sgd", "--lr", str(o.lr),
                   "--momentum", str(MOMENTUM), "--weight-decay", str(WEIGHT_DECAY), "--init-weights", file, "--json",
                   *(["--devices", "cuda:0"] if o.device == "cuda" else ["--devices", "cpu:0", "--threads-per-device", str(torch.get_num_threads())])]
        epochs = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["epochs"]
    return [(epoch["train_loss"], epoch["test_loss"], epoch["test_accuracy"]) for epoch in epochs]


def write_random_images(folder, count):
    """Two files as those of CIFAR-10: a label and 3,072 pixels each."""
    generator = numpy.random.default_rng(1)
    for name in ("data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"):
        rows = generator.integers(0, 256, (count, 3073), numpy.uint8)
        rows[:, 0] %= 10
        rows.tofile(folder / name)


def is_near(curves):
    """Whether each training loss of the third curve is about as near to the other two as they are to each other."""
    near = True
    for (first, *_), (second, *_), (own, *_) in zip(*curves):
        near = near and min(abs(own - first), abs(own - second)) <= max(4 * abs(first - second), 0.01 * first)
    return near


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, nargs="?")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--torch-device", help="of PyTorch, if another")
    parser.add_argument("--vitrine", default="build/release/bin/vitrine")
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--lr", type=float, default=0.02)
    o = parser.parse_args()
    o.torch_device = o.torch_device or o.device
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    with tempfile.TemporaryDirectory() as folder:
        if o.folder is None:
            o.folder = pathlib.Path(folder)
            write_random_images(o.folder, o.samples)
        return compare(o)


def compare(o):
    train = read_images(o.folder / "data_batch_1.bin", o.samples)
    test = read_images(o.folder / "test_batch.bin", o.samples * TEST_IMAGES // TRAINING_IMAGES)
    weights = initial_weights()
    print(f"{o.samples} training images, {len(test[1])} test images, batch {o.batch_size}, lr {o.lr}", flush=True)
    runs = {"PyTorch " + torch.__version__: lambda: curve_of_torch(weights, train, test, torch.contiguous_format, o),
            "PyTorch, channels_last": lambda: curve_of_torch(weights, train, test, torch.channels_last, o),
            "Vitrine": lambda: curve_of_vitrine(weights, o)}
    curves = []
    for name, run in runs.items():
        curves.append(run())
        for epoch, (loss, test_loss, accuracy) in enumerate(curves[-1], 1):
            print(f"{name:24} epoch {epoch}: training loss {loss:.4f}, test loss {test_loss:.4f}, test accuracy {accuracy:.4f}", flush=True)
    return 0 if is_near(curves) else 1


if __name__ == "__main__":
    sys.exit(main())
