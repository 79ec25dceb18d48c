#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/nn/data/tiny.safetensors as PyTorch would save a small network, and tiny.json with an input and what PyTorch makes of it.

The network: conv 3x3 (2 -> 3, pad 1), ReLU, max pool 2, flatten, Linear(18 -> 4), on one image of 4 x 6 pixels. Run with PyTorch and NumPy installed.
"""
import json
import pathlib
import struct

import torch

DATA = pathlib.Path(__file__).parent / "data"


DTYPES = {torch.float32: ("F32", "<f4"), torch.int64: ("I64", "<i8")}  # of safetensors and of NumPy


def write_safetensors(path, tensors, metadata):
    header = {"__metadata__": metadata}
    offset = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype][0], "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.contiguous().numpy().astype(DTYPES[tensor.dtype][1]).tobytes())


def main():
    torch.manual_seed(1)
    features = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2))
    classifier = torch.nn.Sequential(torch.nn.Linear(18, 4))
    net = torch.nn.ModuleDict({"features": features, "classifier": classifier})
    images = torch.randn(2, 2, 4, 6)
    logits = classifier(torch.flatten(features(images), 1))
    DATA.mkdir(exist_ok=True)
    write_safetensors(DATA / "tiny.safetensors", net.state_dict(), {"format": "pt"})
    record = {"images_nhwc": images.permute(0, 2, 3, 1).flatten().tolist(), "logits": logits.detach().flatten().tolist()}
    (DATA / "tiny.json").write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
