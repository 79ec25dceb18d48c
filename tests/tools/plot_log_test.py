#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/examples/plot_log.py plots what `vitrine train --log` writes. Exit 77 (skipped) without the package matplotlib.

usage: plot_log_test.py VITRINE PLOT_LOG
"""
import os
import subprocess
import sys
import tempfile

try:
    import matplotlib  # noqa: F401
except ImportError:
    print("skipped: the Python package matplotlib is not installed")
    sys.exit(77)

vitrine, plot_log = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    log, image = os.path.join(folder, "run.jsonl"), os.path.join(folder, "run.png")
    subprocess.run([vitrine, "train", "--model", "lenet5", "--data", "synthetic:128", "--devices", "cpu:0", "--threads-per-device", "1", "--epochs", "2",
                    "--log", log], check=True, capture_output=True)
    subprocess.run([sys.executable, plot_log, log, image], check=True, env=dict(os.environ, MPLBACKEND="Agg"))
    with open(image, "rb") as file:
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"
print("plotted")
