#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a torch.nn.Sequential as a model file of Vitrine. Containers inside it are written layer by layer, with the
names of PyTorch's parameters. What a model file cannot describe is refused with a TypeError that names it.

    from export_model import export
    export(net, (3, 32, 32), "my_net.json")     # the shape of one image: channels, height, width
"""
import json

import torch


def layers_of(module, name=""):
    """Yields (name, layer) in the order of the forward pass; a layer that is used twice comes twice."""
    kind = type(module)
    what = name or "the model"
    if module._forward_hooks or module._forward_pre_hooks:
        raise TypeError(f"{what}: a hook changes what it computes; write the layers without hooks")
    if "forward" in vars(module):
        raise TypeError(f"{what}: its forward was replaced; write what it computes as layers of a Sequential")
    if kind.forward is torch.nn.Sequential.forward:
        for key, child in module._modules.items():
            yield from layers_of(child, f"{name}.{key}" if name else key)
    elif getattr(torch.nn, kind.__name__, None) is kind:
        yield name, module
    else:
        raise TypeError(f"{what}: expected a torch.nn.Sequential or a layer of torch.nn, got {kind.__name__}, "
                        "which has its own forward; write it as a Sequential")


def export(net, image, path):
    layers, owners = [], {}
    for name, layer in layers_of(net):
        for key, tensor in [*layer.named_parameters(), *layer.named_buffers()]:
            owner = owners.setdefault(id(tensor), f"{name}.{key}")
            if owner != f"{name}.{key}":
                raise TypeError(f"{name}: its {key} is also {owner}, but layers of a model file share no parameters; "
                                "give each layer its own")
            if tensor.dtype not in (torch.float32, torch.int64):
                raise TypeError(f"{name}: its {key} is {tensor.dtype}, but layers of a model file are torch.float32; "
                                "convert the net with .float()")
        settings = {key: getattr(layer, key) for key in getattr(layer, "__constants__", [])}
        if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear)):
            settings["bias"] = layer.bias is not None
        layers.append({"name": name, "type": type(layer).__name__, **settings})
    with open(path, "w") as file:
        json.dump({"input": list(image), "layers": layers}, file, indent=1)
