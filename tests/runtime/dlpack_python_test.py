# SPDX-License-Identifier: Apache-2.0
"""DLPack tensors go to NumPy and PyTorch and come from them without a copy. Skipped (77) where neither is installed."""
import ctypes
import gc
import importlib
import sys

module = ctypes.CDLL(sys.argv[1])
module.make_tensor.restype = ctypes.c_void_p
module.double_tensor.argtypes = [ctypes.c_void_p]
module.held_bytes.restype = ctypes.c_int64
api = ctypes.pythonapi
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
NAME, USED = b"dltensor", b"used_dltensor"


class Exporter:
    def __dlpack__(self, **_):
        return api.PyCapsule_New(module.make_tensor(), NAME, None)

    def __dlpack_device__(self):
        return (1, 0)


def check(library):
    before = module.held_bytes()
    array = library.from_dlpack(Exporter())
    assert array.shape == (2, 3) and array.tolist() == [[0, 1, 2], [3, 4, 5]], array
    assert module.held_bytes() > before, "the array does not hold our memory"
    del array
    gc.collect()
    assert module.held_bytes() == before, "our memory was not released"

    ours = library.ones((4, 5), dtype=library.float32)
    capsule = ours.__dlpack__()
    assert module.double_tensor(api.PyCapsule_GetPointer(capsule, NAME)) == 0
    api.PyCapsule_SetName(capsule, USED)
    assert ours.tolist() == [[2.0] * 5] * 4, ours

    transposed = library.ones((4, 5), dtype=library.float32).T
    capsule = transposed.__dlpack__()
    assert module.double_tensor(api.PyCapsule_GetPointer(capsule, NAME)) == 1, "a transposed array was taken"


found = []
for name in ("numpy", "torch"):
    try:
        found.append(importlib.import_module(name))
    except ImportError:
        print(f"{name} is not installed")
for library in found:
    check(library)
    print(f"{library.__name__} {library.__version__}: both ways")
sys.exit(0 if found else 77)
