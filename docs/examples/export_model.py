#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a torch.nn.Sequential as a model file of Vitrine. Containers inside it are written layer by layer, with the names of PyTorch's parameters.

    from export_model import export
    export(net, (3, 32, 32), "my_net.json")     # the shape of one image: channels, height, width
"""
import json

import torch


def export(net, image, path):
    layers = []
    for name, layer in net.named_modules():
        if not isinstance(layer, torch.nn.Sequential):
            settings = {key: getattr(layer, key) for key in getattr(layer, "__constants__", [])}
            if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear)):
                settings["bias"] = layer.bias is not None
            layers.append({"name": name, "type": type(layer).__name__, **settings})
    with open(path, "w") as file:
        json.dump({"input": list(image), "layers": layers}, file, indent=1)
