#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weights go both ways between Vitrine and PyTorch modules with torchvision's names, and the logits are equal to 1e-4. The model "sequential" goes
to Vitrine as a file, written by vitrine.export().

usage: torch_files_test.py VITRINE MODEL...     exits with 77 without PyTorch
"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

SIZE = 64  # pixels; images are gray
IMAGES = 6
CLASSES = 4
TOLERANCE = 1e-4  # relative to the largest logit


def use_python_with_torch(needed="import numpy, torch"):
    """Continues in the first interpreter that has PyTorch and NumPy, and runs the statement `needed`."""
    for python in (sys.executable, "/usr/bin/python3"):
        if os.path.exists(python) and subprocess.run([python, "-c", needed], capture_output=True).returncode == 0:
            if python == sys.executable:
                return
            os.execv(python, [python, *sys.argv])
    print(f"skipped: no python3 can: {needed}")
    sys.exit(77)


use_python_with_torch()

import numpy  # noqa: E402
import torch  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "nn"), str(ROOT / "tools" / "python" / "vitrine")]
from _export import export  # noqa: E402
from record_resnet import resnet18, resnet50  # noqa: E402


class AlexNet(torch.nn.Module):
    """torchvision.models.alexnet without dropout's probability, which evaluation does not use."""

    def __init__(self, classes, in_channels):
        super().__init__()
        nn = torch.nn
        self.features = nn.Sequential(nn.Conv2d(in_channels, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(),
                                      nn.MaxPool2d(3, 2), nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(), nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
                                      nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2))
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(nn.Dropout(), nn.Linear(9216, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(),
                                        nn.Linear(4096, classes))

    def forward(self, x):
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


def sequential(classes, in_channels):
    """Every layer of a model file, every ReLU that is merged, and a layer that is used twice."""
    nn = torch.nn
    relu = nn.ReLU()
    features = nn.Sequential(nn.Conv2d(in_channels, 8, 5, stride=2, padding=2), relu, nn.MaxPool2d(3, 2, 1),
                             nn.Conv2d(8, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12, eps=1e-3, momentum=0.2), nn.ReLU(inplace=True),
                             nn.Conv2d(12, 12, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(12, 16, 1), nn.GELU(), nn.MaxPool2d(2), nn.ReLU())
    return nn.Sequential(features, nn.AdaptiveAvgPool2d((2, 3)), nn.Flatten(), nn.Dropout(0.25), nn.Linear(96, 20), relu,
                         nn.Linear(20, classes, bias=False))


MODELS = {
    "sequential": sequential,
    "alexnet": AlexNet,
    "resnet18": resnet18,
    "resnet18-cifar": lambda classes, channels: resnet18(classes, channels, small_images=True),
    "resnet50": resnet50,
}
DTYPES = {"F32": torch.float32, "I64": torch.int64}


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        dtype = {value: key for key, value in DTYPES.items()}[tensor.dtype]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.contiguous().numpy().tobytes())


def read_safetensors(path):
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        assert begin % torch.empty((), dtype=DTYPES[entry["dtype"]]).element_size() == 0, f"{name} is not aligned"
        flat = torch.frombuffer(bytearray(data[begin:end]), dtype=DTYPES[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors


def write_idx(folder, part, pixels, labels):
    (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, *pixels.shape) + pixels.tobytes())
    (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, len(labels)) + labels.tobytes())


def write_images(folder, count=IMAGES, size=SIZE):
    """A data set in the IDX format; returns the images and labels of both parts, as the program normalizes them."""
    random = numpy.random.default_rng(3)
    parts = []
    for part in ("train", "t10k"):
        pixels = random.integers(0, 256, (count, size, size), dtype=numpy.uint8)
        labels = (numpy.arange(count) % CLASSES).astype(numpy.uint8)
        write_idx(folder, part, pixels, labels)
        if part == "train":
            mean, std = pixels.mean() / 255, pixels.std() / 255
        parts.append((torch.from_numpy((pixels / 255 - mean) / std).float().unsqueeze(1), torch.from_numpy(labels).long()))
    return parts


def vitrine(*arguments):
    subprocess.run([sys.argv[1], *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def model_flags(model, folder):
    if model == "sequential":
        return ["--model", folder / "sequential.json"]
    return ["--model", model, "--image-size", SIZE]


def logits_of(model, folder, weights):
    out = folder / "logits.npy"
    vitrine("eval", *model_flags(model, folder), "--data", f"idx:{folder}", "--weights", weights, "--save-logits", out)
    return torch.from_numpy(numpy.load(out))


def check(what, actual, expected):
    difference = ((actual - expected).abs().max() / expected.abs().max()).item()
    print(f"{what}: logits differ by {difference:.1e} of the largest", flush=True)
    assert actual.shape == expected.shape and difference < TOLERANCE, what


def test(model, folder):
    _, (images, _) = write_images(folder)
    torch.manual_seed(5)
    net = MODELS[model](CLASSES, 1)
    if model == "sequential":
        export(net, (1, SIZE, SIZE), folder / "sequential.json")
    with torch.no_grad():
        net.train()
        net(images)  # running statistics that are not the initial ones
        net.eval()
        weights = folder / "weights.safetensors"
        write_safetensors(weights, net.state_dict())
        check(f"{model}, PyTorch to Vitrine", logits_of(model, folder, weights), net(images))

        trained = folder / "trained.safetensors"
        vitrine("train", *model_flags(model, folder), "--data", f"idx:{folder}", "--devices", "cpu:0-1", "--batch-size", IMAGES, "--steps", 2,
                "--no-eval", "--lr", "0.0001", "--init-weights", weights, "--save", trained)
        tensors = read_safetensors(trained)
        before = net.state_dict()
        counters = [name for name in tensors if name.endswith("num_batches_tracked")]
        for name in counters:
            assert tensors[name].item() == before[name].item() + 2, name
        net.load_state_dict(tensors, strict=True)
        check(f"{model}, Vitrine to PyTorch", logits_of(model, folder, trained), net(images))


def test_export_refuses():
    """What a model file cannot describe is named."""
    nn = torch.nn
    shared, twin = nn.Linear(4, 4), nn.Linear(4, 4)
    twin.weight = shared.weight

    class Residual(nn.Sequential):
        def forward(self, x):
            return x + super().forward(x)

    hooked = nn.Linear(4, 4)
    hooked.register_forward_hook(lambda layer, inputs, output: 2 * output)
    hooked_container, replaced = nn.Sequential(nn.ReLU()), nn.ReLU()
    hooked_container.register_forward_pre_hook(lambda layer, inputs: (2 * inputs[0],))
    replaced.forward = lambda x: 2 * x

    for part, net in {
        "1: a hook changes what it computes": nn.Sequential(nn.ReLU(), hooked),
        "1: a hook changes": nn.Sequential(nn.ReLU(), hooked_container),
        "the model: a hook changes": hooked_container,
        "1: its forward was replaced": nn.Sequential(nn.ReLU(), replaced),
        "0: its weight is torch.float64": nn.Sequential(nn.Linear(4, 4).double()),
        "2: its weight is also 0.weight": nn.Sequential(shared, nn.ReLU(), shared),
        "1: its weight is also 0.weight": nn.Sequential(shared, twin),
        "0: expected a torch.nn.Sequential or a layer of torch.nn, got Residual": nn.Sequential(Residual(nn.Linear(4, 4))),
        "the model: expected a torch.nn.Sequential": AlexNet(CLASSES, 1),
    }.items():
        try:
            export(net, (1, 2, 2), os.devnull)
        except TypeError as error:
            assert part in str(error), error
        else:
            raise AssertionError(f"not refused: {part}")


def main():
    test_export_refuses()
    for model in sys.argv[2:]:
        with tempfile.TemporaryDirectory() as folder:
            test(model, pathlib.Path(folder))


if __name__ == "__main__":
    main()
