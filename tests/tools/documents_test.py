#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/documents finds what is wrong with documents: one mistake at a time, in a tree of its own.

usage: documents_test.py DOCUMENTS VITRINE VITRINE_COMMAND_LINE
"""
import os
import subprocess
import sys
import tempfile

GOOD = {
    "README.md": """# Project

See [the page](docs/page.md#a-part-of-it) and [below](#project).

    vitrine train --model mlp --data cifar10:DIR --devices cuda:all   # a comment's apostrophe
    for i in 1 2; do
      mpirun -np 2 vitrine train --seed $i ... --checkpoint-dir $(mktemp -d)
    done
""",
    "docs/page.md": """# Page

## A part of it

<!-- CI: add --steps 2 -->

    vitrine train --model mlp --data synthetic:64 --steps 1000000 --devices cpu:0 --no-eval

```console exact exit=1
$ vitrine plan --model mlp --devices meta:0 --device-memory 4KiB --batch-size 1 \\
    | grep -c "does not fit"; exit 1
1
```

<!-- figures: vitrine plan --model mlp --devices meta:0-1 --device-memory 1GiB --workspace 32MiB --batch-size 2 \\
       --mode dp --no-eval
     devices.0.peak_bytes_by_category.workspace devices.0.capacity_bytes -
     devices.0.peak_bytes_by_category.workspace-devices.1.peak_bytes_by_category.workspace -->

The workspace has 32.0 MiB of 1,073,741,824, for 2 samples, 5 % of something, and 0 bytes more than the other.

Device 0 holds more, and twice 32 MiB of workspace are 64.

<!-- holds: vitrine plan --model mlp --devices meta:0-1 --device-memory 1GiB --workspace 32MiB --batch-size 2 \\
       --mode dp --no-eval
     devices.0.peak_bytes > devices.1.peak_bytes
     devices.*.peak_bytes_by_category.workspace == 2 * 32 * 2**20 and fits -->
""",
    "docs/speed.md": """# Speed

<!-- speeds: results.json a-b64 -->
<!-- speeds: results.json b-b128 -->

| job | PyTorch, tuned | best of PyTorch eager | Vitrine | ratio | rounds |
| --- | --- | --- | --- | --- | --- |
| A, f32 | 47.5 | 47.5 | 52.0 | 1.10 | 1.09 to 1.11 |
| B | 1,000 | 2,000 | 4,000 | 2.00 | 2.00 to 2.00 |
""",
    "results.json": """{"results": {
"a-b64": {"samples_per_second": {"eager": 1.25, "tuned": 47.52, "vitrine": 52}, "ratio": 1.1, "ratios": [1.11, 1.09, 1.1]},
"b-b128": {"samples_per_second": {"eager": 2000, "tuned": 1000, "vitrine": 4000}, "ratio": 2, "ratios": [2]}}}
""",
}
# file, what is replaced, by what, the words of the report
MISTAKES = [
    ("README.md", "docs/page.md#a", "docs/pages.md#a", "README.md:3: the link docs/pages.md#a-part-of-it leads to no file"),
    ("README.md", "#a-part", "#the-part", "docs/page.md has no heading #the-part-of-it"),
    ("README.md", "--model mlp", "--model mpl", "README.md:5: vitrine train"),
    ("README.md", "--seed $i", "--sead $i", "README.md:7: vitrine train"),
    ("docs/page.md", "A part", "The part", "README.md:3: docs/page.md has no heading"),
    ("docs/page.md", "--no-eval", "--mode dp --output-device cpu:7", "docs/page.md:7: 'vitrine train"),
    ("docs/page.md", "\n1\n", "\n2\n", "docs/page.md:10: the program prints something else"),
    ("docs/page.md", " exit=1", "", "docs/page.md:10: 'vitrine plan"),
    ("docs/page.md", "has 32.0 MiB", "has 31.9 MiB", "docs/page.md:20: the program's figures are others: The workspace has 32.0 MiB"),
    ("docs/page.md", "1,073,741,824", "1,073,741,825", "docs/page.md:20: the program's figures are others"),
    ("docs/page.md", "0 bytes", "0.1 MiB", "docs/page.md:20: the program's figures are others"),
    ("docs/page.md", ", 5 %", "", "docs/page.md:15: the comments name 4 values, but 3 figures follow"),
    ("docs/page.md", "0.capacity_bytes", "2.capacity_bytes", "docs/page.md:15: no figures: IndexError"),
    ("docs/page.md", "meta:0-1", "meta:0-x", "docs/page.md:15: no figures: ValueError"),
    ("docs/page.md", "0.peak_bytes >", "0.peak_bytes <", "docs/page.md:24: 'devices.0.peak_bytes < devices.1.peak_bytes' does not hold: "),
    ("docs/page.md", "== 2 * 32", "== 3 * 32", "docs/page.md:24: 'devices.*.peak_bytes_by_category.workspace == 3 * 32 * 2**20 and fits' does not hold: 67108864"),
    ("docs/page.md", "and fits", "and fots.0", "cannot be checked: KeyError('fots')"),
    ("docs/page.md", "and fits", "and fits and", "cannot be checked: SyntaxError"),
    ("docs/speed.md", "| 52.0", "| 53.0", "docs/speed.md:8: the results are others: | A, f32 | 47.5 | 47.5 | 52.0 | 1.10 | 1.09 to 1.11 |"),
    ("docs/speed.md", "| 2.00 |", "| 2.01 |", "docs/speed.md:9: the results are others"),
    ("docs/speed.md", "b-b128", "b-b129", "docs/speed.md:1: no speeds: KeyError"),
    ("docs/speed.md", "best of PyTorch eager", "best PyTorch", "docs/speed.md:1: no speeds: KeyError('compile')"),
    ("docs/speed.md", " b-b128 -->", " b-b128 a-b64 -->", "docs/speed.md:1: no speeds: ValueError"),
]


def check(files):
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(text)
        ended = subprocess.run([sys.executable, sys.argv[1], "check", "--root", root, "--program", sys.argv[2], "--command-line", sys.argv[3]],
                               capture_output=True, text=True, check=False)
        return ended.returncode, ended.stdout + ended.stderr


status, report = check(GOOD)
assert status == 0 and "4 commands parsed, 2 run, 2 claims, 0 problems" in report, report
for path, good, bad, words in MISTAKES:
    assert good in GOOD[path], good
    status, report = check({**GOOD, path: GOOD[path].replace(good, bad, 1)})
    assert status == 1 and words in report, f"{bad} in {path}: '{words}' is not reported:\n{report}"
print(f"{len(MISTAKES)} mistakes found")
