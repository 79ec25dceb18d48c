#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws model files and compares Vitrine with PyTorch in double precision: the logits of a test set, and the loss, all gradients and all
running statistics of one training step, whose memory must be the planned one. Layers of every type of docs/model_files.md come in any legal order and
size, in nested Sequentials, on images of 1 or 3 channels and of any shape; vitrine.export() writes the files.

usage: torch_models_test.py VITRINE [FILES [FIRST]]     FILES numbers of files from FIRST on; [100 0]
       exits with 77 without PyTorch; names and keeps what differs
"""
import collections
import concurrent.futures
import copy
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

from torch_files_test import export, read_safetensors, use_python_with_torch, write_idx, write_safetensors

use_python_with_torch()

import numpy  # noqa: E402
import torch  # noqa: E402

nn = torch.nn
RATE = 16.0  # a power of two, so large that the rounding of a weight does not hide its gradient
TOLERANCE = 1e-4  # of the largest value
NOISE = 3e-7  # of weights, pixels and the outputs of all layers: what this or f32 changes in PyTorch's values may differ ten times as much
UNSURE = 0.05  # of the largest value: noise that changes more says that an element is too close to a kink, and decides nothing


class Drawer:
    """A random torch.nn.Sequential for images of `shape`."""

    def __init__(self, rng):
        self.rng, self.shared = rng, nn.ReLU()
        self.image = (rng.choice([1, 3]), rng.randint(1, 20), rng.randint(1, 20))
        self.channels, self.height, self.width = self.image
        self.layers = []

    def pair(self, size):
        return self.rng.choice([size, (size, size)])

    def window(self, sizes, most_padding):
        """Kernel, stride and padding that fit the image."""
        kernel = self.rng.choice(sizes)
        padding = self.rng.randint(0, most_padding(kernel))
        kernel = min(kernel, self.height + 2 * padding, self.width + 2 * padding)
        padding = min(padding, most_padding(kernel))
        return kernel, self.rng.randint(1, 4), padding

    def slide(self, kernel, stride, padding):
        self.height, self.width = ((size + 2 * padding - kernel) // stride + 1 for size in (self.height, self.width))

    def conv(self):
        kernel, stride, padding = self.window([1, 1, 2, 3, 3, 3, 4, 5, 7, 11], lambda kernel: min(kernel, 4))
        out = self.rng.choice([1, 2, 3, 5, 8, 12, 16])
        self.layers.append(nn.Conv2d(self.channels, out, self.pair(kernel), self.pair(stride), self.pair(padding), bias=self.rng.random() < 0.8))
        self.channels = out
        self.slide(kernel, stride, padding)

    def pool(self):
        kernel, stride, padding = self.window([1, 2, 2, 3, 3, 5, 16], lambda kernel: kernel // 2)
        stride = self.rng.choice([None, stride])
        self.layers.append(self.rng.choice([nn.MaxPool2d, nn.AvgPool2d])(self.pair(kernel), stride and self.pair(stride), self.pair(padding)))
        self.slide(kernel, stride or kernel, padding)

    def adaptive(self, most=6):
        self.height, self.width = self.rng.randint(1, most), self.rng.randint(1, most)
        self.layers.append(nn.AdaptiveAvgPool2d(self.height if self.height == self.width else (self.height, self.width)))

    def norm(self):
        self.layers.append(nn.BatchNorm2d(self.channels, eps=self.rng.choice([1e-5, 1e-3, 0.1]), momentum=self.rng.choice([0.1, 0.5, 1.0])))

    def activation(self):
        kind = self.rng.randrange(5)
        self.layers.append([self.shared, nn.ReLU(inplace=True), nn.ReLU(), nn.GELU(), nn.Dropout(self.rng.choice([0.0, 0.3, 0.5]))][kind])

    def elements(self):
        return self.channels * self.height * self.width

    def draw(self):
        rng = self.rng
        for _ in range(rng.randint(0, 8)):
            rng.choices([self.conv, self.pool, self.adaptive, self.norm, self.activation], [4, 2, 1, 2, 4])[0]()
        if self.elements() > 1000:
            self.adaptive(4)
        if not any(list(layer.parameters()) for layer in self.layers) and rng.random() < 0.5:
            self.conv()
        self.layers.append(nn.Flatten())
        features = self.elements()
        linears = rng.choice([0, 0, 1, 2])
        if not any(list(layer.parameters()) for layer in self.layers):
            linears = max(1, linears)
        for i in range(linears + 1):
            for _ in range(rng.choice([0, 0, 1, 2])):
                self.layers.append(nn.Flatten()) if rng.random() < 0.1 else self.activation()
            if i < linears:
                out = rng.choice([1, 2, 7, 10, 33])
                self.layers.append(nn.Linear(features, out, bias=rng.random() < 0.8))
                features = out
        return self.nested(), features

    def nested(self):
        """Puts some consecutive layers into Sequentials of their own."""
        layers, modules, at = self.layers, [], 0
        while at < len(layers):
            count = self.rng.choice([1, 1, 1, 2, 3])
            part = layers[at:at + count]
            names = [f"{self.rng.choice(['conv', 'block_a', 'x-1'])}{i}" for i in range(len(part))]
            modules += part if count == 1 else [nn.Sequential(collections.OrderedDict(zip(names, part)))]
            at += count
        return nn.Sequential(*modules)


def write_cifar(folder, parts):
    for part, (pixels, labels) in parts.items():
        records = [bytes([label]) + image.tobytes() for image, label in zip(pixels, labels)]
        for name in [f"data_batch_{i}" for i in range(1, 6)] if part == "train" else ["test_batch"]:
            (folder / f"{name}.bin").write_bytes(b"".join(records))


def draw_data(rng, folder, image, classes):
    """Writes a data set. Returns its name, the images and labels of both parts in double precision, and the batch size."""
    random_numbers = numpy.random.default_rng(rng.randrange(1 << 30))
    channels, height, width = image
    size = (32, 32) if channels == 3 else (height, width) if rng.random() < 0.7 else (rng.randint(1, 24), rng.randint(1, 24))
    batch = rng.randint(2, 7)
    parts = {part: (random_numbers.integers(0, 256, (count, channels, *size), dtype=numpy.uint8),
                    random_numbers.integers(0, min(classes, 10), count, dtype=numpy.uint8)) for part, count in (("train", batch), ("t10k", 5))}
    parts["t10k"][1][:] %= parts["train"][1].max() + 1  # the training set says how many classes there are
    if channels == 3:
        write_cifar(folder, parts)
    else:
        for part, (pixels, labels) in parts.items():
            write_idx(folder, part, pixels[:, 0], labels)
    tensors = []
    for pixels, labels in parts.values():
        x = torch.from_numpy(pixels).double() / 255
        if size != (height, width):
            x = nn.functional.interpolate(x, size=(height, width), mode="bilinear", align_corners=False)
        tensors.append((x, torch.from_numpy(labels).long()))
    return f"{'cifar10' if channels == 3 else 'idx'}:{folder}", *tensors, batch


def reference(net, test, train, noise=None, dtype=torch.float64):
    """What PyTorch computes, by name; with noise, as if everything were rounded."""
    net = copy.deepcopy(net).to(dtype)
    (test_images, _), (images, labels) = test, train
    test_images, images = test_images.to(dtype), images.to(dtype)

    def disturbed(tensor):
        return tensor * (1 + NOISE * torch.randn(tensor.shape, generator=noise, dtype=tensor.dtype)) if noise else tensor
    for layer in net.modules() if noise else ():
        if not isinstance(layer, nn.Sequential):
            layer.register_forward_hook(lambda layer, inputs, output: disturbed(output))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(disturbed(parameter))
        values = {"logits": net.eval()(disturbed(test_images))}
    for layer in net.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
        elif isinstance(layer, nn.ReLU):
            layer.inplace = False  # PyTorch cannot differentiate after some layers in place
    loss = nn.functional.cross_entropy(net.train()(disturbed(images)), labels)
    loss.backward()
    values["loss"] = loss.detach()
    values.update((name, parameter.grad) for name, parameter in net.named_parameters())
    values.update((name, buffer) for name, buffer in net.named_buffers() if buffer.is_floating_point())
    return {name: value.double() for name, value in values.items()}


class Failed(Exception):
    pass


def vitrine(*arguments):
    command = [sys.argv[1], *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def found_values(rng, folder, net, data, batch):
    """The same values of Vitrine."""
    weights, trained, logits, log = (folder / name for name in ("weights.safetensors", "trained.safetensors", "logits.npy", "log.jsonl"))
    write_safetensors(weights, net.state_dict())
    threads = ("--threads-per-device", 1, "--normalize", "none")
    vitrine("eval", "--model", folder / "net.json", "--data", data, "--weights", weights, "--save-logits", logits, "--devices", "cpu:0", *threads)
    devices = rng.choice(["cpu:0", "cpu:0-1"])
    record = vitrine("train", "--json", "--model", folder / "train.json", "--data", data, "--devices", devices, "--batch-size", batch, "--steps", 1, "--no-shuffle",
            "--no-eval", "--optimizer", "sgd", "--lr", RATE, "--momentum", 0, "--weight-decay", 0, "--init-weights", weights, "--save", trained,
            "--log", log, "--log-every", 1, *threads)
    for device in json.loads(record)["devices"]:
        for key in ("peak_bytes", "peak_bytes_by_category"):
            if device[key] != device["planned_" + key]:
                raise Failed(f"{device['name']}: {key} {device[key]}, but planned {device['planned_' + key]}")
    values = {"logits": torch.from_numpy(numpy.load(logits)).double()}
    values["loss"] = torch.tensor(next(row["loss"] for row in map(json.loads, log.read_text().splitlines()) if row["kind"] == "step")).double()
    before = net.state_dict()
    parameters = dict(net.named_parameters())
    for name, tensor in read_safetensors(trained).items():
        if tensor.is_floating_point():
            values[name] = (before[name].double() - tensor.double()) / RATE if name in parameters else tensor.double()
    return values


def differences(found, expected, noises, gradients):
    """Compares values by name, those named in `gradients` also with the largest of them. Returns what differs, and how many noise leaves undecided."""
    wrong, unsure = [], 0
    largest = max(expected[name].abs().max().item() for name in gradients)
    for name, value in expected.items():
        if found[name].shape != value.shape:
            wrong.append(f"{name} has shape {tuple(found[name].shape)}, expected {tuple(value.shape)}")
            continue
        scale = max(value.abs().max().item(), 0.1 * largest if name in gradients else 0.0, 1e-3)  # the gradient of a bias before batch norm is rounding
        noise = max((other[name] - value).abs().max().item() for other in noises)
        difference = (found[name] - value).abs().max().item()
        unsure += noise > UNSURE * scale
        if not difference <= TOLERANCE * scale + 10 * noise and noise <= UNSURE * scale:
            wrong.append(f"{name}: differs by {difference:.1e}; the largest value is {scale:.1e}, noise changes {noise:.1e}")
    return wrong, unsure


def compare(number):
    """Draws file `number`. Returns (layers of the net, what differs, values that noise leaves undecided)."""
    rng = random.Random(f"model {number}")
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"model{number}-"))
    torch.manual_seed(number)
    drawer = Drawer(rng)
    net, classes = drawer.draw()
    data, train, test, batch = draw_data(rng, folder, drawer.image, min(classes, 10))
    if drawer.image[0] == 3 and classes < 10:  # CIFAR has ten
        net.append(nn.Linear(classes, 10))
    with torch.no_grad():
        net.train()(train[0].float())  # running statistics that are not the initial ones
    export(net, drawer.image, folder / "net.json")
    without_dropout = copy.deepcopy(net)
    for layer in without_dropout.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    export(without_dropout, drawer.image, folder / "train.json")
    expected = reference(net, test, train)
    noises = [reference(net, test, train, dtype=torch.float32)]
    noises += [reference(net, test, train, torch.Generator().manual_seed(seed)) for seed in range(2)]
    gradients = {name for name, _ in net.named_parameters()}
    try:
        found = found_values(rng, folder, net, data, batch)
        wrong, unsure = differences(found, expected, noises, gradients)
        if wrong:  # more noise may show that an element is close to a kink
            noises += [reference(net, test, train, torch.Generator().manual_seed(seed)) for seed in range(2, 30)]
            wrong, unsure = differences(found, expected, noises, gradients)
    except Failed as error:
        wrong, unsure = [str(error)], 0
    if not wrong:
        shutil.rmtree(folder)
    return [type(layer).__name__ for layer in net.modules() if not isinstance(layer, nn.Sequential)], [f"{folder}: {text}" for text in wrong], unsure


def main():
    files, first = (int(argument) for argument in (sys.argv[2:] + ["100", "0"][len(sys.argv) - 2:]))
    torch.set_num_threads(1)
    layers, failed, unsure, last_flattens = collections.Counter(), 0, 0, 0
    with concurrent.futures.ProcessPoolExecutor(max_workers=2) as pool:
        for number, (kinds, wrong, undecided) in zip(range(first, first + files), pool.map(compare, range(first, first + files))):
            layers.update(kinds)
            unsure += undecided > 0
            last_flattens += "Linear" not in kinds
            if wrong:
                failed += 1
                print(f"FAILED: file {number}:", *wrong, sep="\n  ", flush=True)
    print(f"{files} model files: {files - failed} as in PyTorch {torch.__version__}, {failed} differ; noise leaves values of {unsure} undecided; "
          f"{last_flattens} have no Linear; layers: {dict(layers.most_common())}")
    assert unsure < 0.2 * files + 3, "the comparison decides too little"
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
