#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records PyTorch's losses and running statistics over 20 training steps of resnet18 in tests/nn/data/resnet.json, in f32 and in double precision.

Weights are drawn from Philox as in record_losses.py: convolutions and fc uniformly, with the deviation that torchvision's initialization has (a normal
distribution would depend on the library's logarithm and cosine). Images are drawn from Philox too: in periodic ones, maxima are equal, and rounding
decides where their gradient goes. Of each running statistic, the first eight values after the last step are kept, and 64 evenly spaced ones, in
double precision, after each of the first three steps. Run with PyTorch and NumPy installed.
"""
import json
import math
import pathlib

import numpy
import torch

from record_losses import CLASSES, STEPS, philox_uniform

EARLY_STEPS = 3  # rounding has not grown yet
EARLY_VALUES = 64


class BasicBlock(torch.nn.Module):
    """torchvision.models.resnet.BasicBlock."""

    def __init__(self, channels, width, stride):
        super().__init__()
        nn = torch.nn
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or channels != width:
            self.downsample = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(torch.nn.Module):
    """torchvision.models.resnet.Bottleneck."""

    def __init__(self, channels, width, stride):
        super().__init__()
        nn = torch.nn
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = None
        if stride != 1 or channels != 4 * width:
            self.downsample = nn.Sequential(nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))
        return torch.relu(self.bn3(self.conv3(y)) + (x if self.downsample is None else self.downsample(x)))


class ResNet(torch.nn.Module):
    """torchvision.models.resnet.ResNet: names and order of the parameters."""

    def __init__(self, block, blocks, classes, in_channels=3, small_images=False):
        super().__init__()
        nn = torch.nn
        self.conv1 = nn.Conv2d(in_channels, 64, 3, 1, 1, bias=False) if small_images else nn.Conv2d(in_channels, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.Identity() if small_images else nn.MaxPool2d(3, 2, 1)
        channels = 64
        for i, count in enumerate(blocks):
            layer = []
            for k in range(count):
                layer.append(block(channels, 64 << i, 2 if i > 0 and k == 0 else 1))
                channels = (64 << i) * (4 if block is Bottleneck else 1)
            setattr(self, f"layer{i + 1}", nn.Sequential(*layer))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(torch.nn.functional.adaptive_avg_pool2d(x, 1), 1))


def resnet18(classes, in_channels=3, small_images=False):
    return ResNet(BasicBlock, [2, 2, 2, 2], classes, in_channels, small_images)


def resnet50(classes, in_channels=3):
    return ResNet(Bottleneck, [3, 4, 6, 3], classes, in_channels)


def initialize(net):
    """Fills the parameters as tests/nn/training.cpp does; batch norm keeps weight 1 and bias 0."""
    fan_in = net.fc.weight.shape[1]
    for index, (name, parameter) in enumerate(net.named_parameters()):
        if parameter.dim() == 4:
            k, c, r, s = parameter.shape
            bound = numpy.float32(float(numpy.float32(math.sqrt(2.0 / (k * r * s)))) * math.sqrt(3.0))
        elif name.startswith("fc."):
            bound = numpy.float32(1.0 / math.sqrt(fan_in))
        else:
            continue
        values = torch.from_numpy((2 * philox_uniform(0, index, parameter.numel()) - numpy.float32(1)) * bound)
        if parameter.dim() == 4:
            values = values.reshape(k, r, s, c).permute(0, 3, 1, 2)
        parameter.data = values.reshape(parameter.shape).contiguous().to(parameter.dtype)


def batch(step, samples, size):
    """Uniform in [-1, 1), from Philox at (1, step), in the order (N, H, W, C)."""
    values = 2 * philox_uniform(1, step, samples * size * size * 3) - numpy.float32(1)
    images = torch.from_numpy(values).reshape(samples, size, size, 3).permute(0, 3, 1, 2).contiguous()
    return images, (3 * torch.arange(samples) + 7 * step) % CLASSES


def running_statistics(net, values):
    """`values` evenly spaced values of each, to nine digits."""
    found = {name: value for name, value in net.named_buffers() if "running" in name}
    return {name: [float(f"{v:.9g}") for v in value[:: max(1, value.numel() // values)].tolist()] for name, value in found.items()}


def relative_difference(found, expected):
    pairs = [(a, b) for name in expected for a, b in zip(found[name], expected[name])]
    return math.sqrt(sum((a - b) ** 2 for a, b in pairs) / sum(b**2 for _, b in pairs))


def train(make, samples, size, lr, momentum, dtype):
    net = make().to(dtype)
    initialize(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=momentum)
    losses, early = [], []
    for step in range(STEPS):
        images, labels = batch(step, samples, size)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(images.to(dtype)), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step < EARLY_STEPS:
            early.append(running_statistics(net, EARLY_VALUES))
    running = {name: value[:8].tolist() for name, value in net.named_buffers() if "running" in name}
    return losses, running, early


def main():
    torch.manual_seed(0)
    record = {"torch": torch.__version__}
    jobs = {"resnet18": (lambda: resnet18(CLASSES), 8, 64, 0.001, 0.9)}
    for name, (make, samples, size, lr, momentum) in jobs.items():
        losses, running, early = train(make, samples, size, lr, momentum, torch.float32)
        exact, exact_running, exact_early = train(make, samples, size, lr, momentum, torch.float64)
        for step, (a, b) in enumerate(zip(losses, exact)):
            print(f"{name} step {step}: {a:.7f}, relative difference to double precision {abs(a - b) / b:.2e}", flush=True)
        for step, (a, b) in enumerate(zip(early, exact_early)):
            print(f"{name} running statistics after step {step}: relative difference to double precision {relative_difference(a, b):.2e}", flush=True)
        record[name] = {"samples": samples, "image_size": size, "lr": lr, "momentum": momentum, "losses": losses, "exact_losses": exact,
                        "running": running, "exact_running": exact_running, "exact_early_running": exact_early}
    (pathlib.Path(__file__).parent / "data" / "resnet.json").write_text(json.dumps(record, indent=None) + "\n")


if __name__ == "__main__":
    main()
