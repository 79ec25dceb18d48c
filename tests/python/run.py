#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a test of the Python package with pytest; exits with 77 (skipped) where Python packages that it needs are missing.

usage: run.py PACKAGE_FOLDER TEST [ARGUMENT...]      PACKAGE_FOLDER: build/release/python
"""
import os
import sys
import tempfile

try:
    import numpy  # noqa: F401
    import pytest
except ImportError as missing:
    system = "/usr/bin/python3"  # for which tools/setup installs them
    if os.path.exists(system) and not os.path.samefile(system, sys.executable):
        os.execv(system, [system, *sys.argv])
    print(f"skipped: {missing}")
    sys.exit(77)

package = os.path.abspath(sys.argv[1])
tests = [os.path.abspath(sys.argv[2]), *sys.argv[3:]]
sys.path.insert(0, package)
os.environ["PYTHONPATH"] = package  # of notebooks and other processes
os.environ["OMP_WAIT_POLICY"] = "passive"  # tests run in parallel
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-rs", *tests])
sys.exit(77 if status == pytest.ExitCode.NO_TESTS_COLLECTED else status)
