#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the programs and files of a folder: what limits the harm of an error in handling memory is there, no program looks for libraries in the
current directory, and no file names the folders in which it was built.

usage: hardening_test.py READELF FOLDER [--hidden PATH]      PATH: what no file may contain
"""
import os
import re
import subprocess
import sys


def problems_of(text):
    """What is wrong with a program, from the output of readelf -W --file-header --program-headers --dynamic."""
    for paths in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", text):
        for path in paths.split(":"):
            if not path.startswith(("/", "$ORIGIN")):
                yield f"it looks for libraries in '{path}': {paths}"
    if "GNU_RELRO" not in text or not re.search(r"\(FLAGS_1\).*\bNOW\b|\(BIND_NOW\)|\(FLAGS\).*\bBIND_NOW\b", text):
        yield "its table of functions stays writable, expected -z relro and -z now"
    if not re.search(r"Type:\s+DYN", text):
        yield "its address is fixed, expected a position-independent program"


def is_program(path):
    with open(path, "rb") as file:
        return os.access(path, os.X_OK) and file.read(4) == b"\x7fELF"


def check_of_the_check():
    good = "Type: DYN (...)\nGNU_RELRO\n(FLAGS_1) Flags: NOW PIE\n(RUNPATH) Library runpath: [/opt/lib:$ORIGIN]\n"
    assert not list(problems_of(good))
    for old, new in (("/opt/lib", ""), ("$ORIGIN", ""), ("$ORIGIN", "lib"), ("NOW ", ""), ("GNU_RELRO", ""), ("DYN", "EXEC")):
        assert len(list(problems_of(good.replace(old, new)))) == 1, (old, new)


def main():
    check_of_the_check()
    readelf, folder, *rest = sys.argv[1:]
    hidden = rest[1].encode() if rest else None
    failures, programs = [], 0
    for directory, _, names in os.walk(folder):
        for path in (os.path.join(directory, name) for name in sorted(names)):
            if os.path.islink(path):
                continue
            if is_program(path):
                programs += 1
                headers = subprocess.run([readelf, "-W", "--file-header", "--program-headers", "--dynamic", path], check=True, capture_output=True, text=True).stdout
                failures += [f"{path}: {problem}" for problem in problems_of(headers)]
                if os.path.basename(path) == "vitrine":
                    symbols = subprocess.run([readelf, "-W", "--dyn-syms", path], check=True, capture_output=True, text=True).stdout
                    failures += [f"{path}: it calls no {what}" for what in ("__stack_chk_fail", r"__\w+(?<!stack)_chk") if not re.search(rf" {what}@", symbols)]
            if hidden and not path.endswith(".md"):  # texts name build/release/bin/vitrine
                with open(path, "rb") as file:
                    content = file.read()
                # A folder of the sources follows: "/vitrine" alone is part of many names, and a build may be in it.
                if found := re.search(re.escape(hidden) + rb"/(build|runtime|kernels|nn|data|tools|bench|tests)/", content):
                    at = found.start()
                    failures.append(f"{path}: it names the folder of the build: {content[at:at + 120]!r}")
    if programs == 0:
        failures.append(f"{folder}: no program is there")
    print("\n".join(failures) or f"{programs} programs")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
