# SPDX-License-Identifier: Apache-2.0
"""tools/size counts code and words, and fails above the budget and after a raise that no commit explains."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

FILES = {
    ".clang-format": "BasedOnStyle: Google\nColumnLimit: 120\n",
    "nn/parallel/reduce/a.cpp": "// comment\n\nint a;\n/* two\nlines */\nint b;\n",
    "tests/nn/a_test.cpp": "int a;\n",
    "docs/page.md": "# A page\nof five words.\n",
}

with tempfile.TemporaryDirectory() as root:
    size = os.path.join(root, "tools", "size")

    def write(path, text):
        os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
        with open(os.path.join(root, path), "w", encoding="utf-8") as file:
            file.write(text)

    def set_budget(message, product):
        write("tools/size_budget.json", json.dumps({"product": product, "tests": 1}))
        for command in (["add", "."], ["-c", "user.name=a", "-c", "user.email=a", "-c", "commit.gpgsign=false", "commit", "-qm", message]):
            subprocess.run(["git", "-C", root, *command], check=True)

    def check():
        result = subprocess.run([size, "--check"], capture_output=True, text=True, check=False)
        return result.returncode, result.stdout

    for name, text in FILES.items():
        write(name, text)
    subprocess.run(["git", "-C", root, "init", "-q"], check=True)
    os.mkdir(os.path.join(root, "tools"))
    shutil.copy(sys.argv[1], size)
    set_budget("The first budget", 2)
    assert check() == (0, ""), check()
    counts = dict(re.findall(r"^(.+?) +(\d+)", subprocess.run([size], capture_output=True, text=True, check=True).stdout, re.MULTILINE))
    for name, count in {"nn/parallel": "2", "nn": "0", "product": "2", "tests": "1", "words in docs": "6"}.items():
        assert counts[name] == count, (name, counts)

    set_budget("Less", 1)
    status, printed = check()
    assert status == 1 and "product has 2 lines of code, 1 more than" in printed, printed
    set_budget("More\n\nBudget: a test needs it", 2)
    assert check() == (0, ""), check()
    set_budget("Even more", 3)
    status, printed = check()
    assert status == 1 and "without a line 'Budget: REASON'" in printed, printed
