#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Images of an image folder have the pixels that Pillow 13 and torchvision's Resize and CenterCrop give, to the bit: drawn images of many sizes and
shapes. A model that passes pixels on shows them as logits.

usage: pillow_images_test.py VITRINE [IMAGES]     exits with 77 without Pillow 13 or newer and NumPy
"""
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

try:
    import numpy
    import PIL
    from PIL import Image
except ImportError:
    print("skipped: Pillow and NumPy are not here")
    sys.exit(77)
if int(PIL.__version__.split(".")[0]) < 13:
    print(f"skipped: Pillow {PIL.__version__} resizes in another order")
    sys.exit(77)


def expected(image, side):
    width, height = image.size
    to = (int(side * width / height), side) if width > height else (side, int(side * height / width))
    image = image.resize(to, Image.BILINEAR)
    left, top = (int(round((length - side) / 2)) for length in to)
    return numpy.asarray(image.crop((left, top, left + side, top + side)))


def write_model(folder, side):
    """A convolution that changes nothing, and a Flatten."""
    weights = numpy.eye(3, dtype=numpy.float32).tobytes()
    header = json.dumps({"0.weight": {"dtype": "F32", "shape": [3, 3, 1, 1], "data_offsets": [0, len(weights)]}}).encode()
    (folder / "weights.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + weights)
    layers = [{"type": "Conv2d", "out_channels": 3, "kernel_size": 1, "bias": False}, {"type": "Flatten"}]
    (folder / "net.json").write_text(json.dumps({"input": [3, side, side], "layers": layers}))


def compare(vitrine, folder, count, side):
    """Returns how many of `count` images differ."""
    rng, numbers, images = random.Random(side), numpy.random.default_rng(side), []
    for part in ("train", "val"):
        (folder / part / "a").mkdir(parents=True)
    for i in range(count):
        # Long, flat and square ones, from a pixel up to several times the model's size.
        width, height = (max(1, int(side * 2 ** rng.uniform(-3, 2.5))) for _ in range(2))
        images.append(Image.fromarray(numbers.integers(0, 256, (height, width, 3), dtype=numpy.uint8)))
        images[-1].save(folder / "val" / "a" / f"{i:05}.png")
    images[0].save(folder / "train" / "a" / "0.png")
    write_model(folder, side)
    subprocess.run([vitrine, "eval", "--model", folder / "net.json", "--data", f"image-folder:{folder}", "--normalize", "none", "--weights",
                    folder / "weights.safetensors", "--devices", "cpu:0", "--save-logits", folder / "logits.npy"], check=True, stdout=subprocess.DEVNULL)
    pixels = numpy.load(folder / "logits.npy").reshape(count, 3, side, side).transpose(0, 2, 3, 1) * 255
    differ = 0
    for image, found in zip(images, pixels):
        difference = numpy.abs(expected(image, side) - found).max()
        if not difference < 0.01:
            differ += 1
            print(f"an image of {image.size[0]}x{image.size[1]} as {side}x{side} differs by {difference:.2f} of 255")
    return differ


def main():
    count, sides, differ = int(sys.argv[2]) if len(sys.argv) > 2 else 200, (1, 7, 24, 33), 0
    for side in sides:
        with tempfile.TemporaryDirectory() as folder:
            differ += compare(sys.argv[1], pathlib.Path(folder), count, side)
    print(f"{len(sides) * count - differ} of {len(sides) * count} images have the pixels of Pillow {PIL.__version__}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
