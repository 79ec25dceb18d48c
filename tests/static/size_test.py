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
    "tests/nn/a_test.py": "a = 1\n",
    "tools/program/page/a.py": '"""Two\nlines."""\n"""one"""\n# another\na = 1\n',
    "bench/a.html": "<!-- one --><p>\n<!-- two\nlines -->\n<p>\n// a script's\n",
    "docs/examples/a.js": "a;\n",
    "docs/examples/a.cpp": "int a;\n",
    "tools/a.py": "a = 1\n",
    "docs/page.md": "# A page\nof five words.\n",
}

with tempfile.TemporaryDirectory() as root:
    size = os.path.join(root, "tools", "size")

    def write(path, text):
        os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
        with open(os.path.join(root, path), "w", encoding="utf-8") as file:
            file.write(text)

    def set_budget(message, library):
        write("tools/size_budget.json", json.dumps({"library": library, "program": 2, "bench": 1, "tests": 1}))
        for command in (["add", "."], ["-c", "user.name=a", "-c", "user.email=a", "-c", "commit.gpgsign=false", "commit", "-qm", message]):
            subprocess.run(["git", "-C", root, *command], check=True)

    def check():
        result = subprocess.run([size, "--check"], capture_output=True, text=True, check=False)
        return result.returncode, result.stdout

    for name, text in FILES.items():
        write(name, text)
    subprocess.run(["git", "-C", root, "init", "-q"], check=True)
    shutil.copy(sys.argv[1], size)
    set_budget("The first budget", 2)
    assert check() == (0, ""), check()
    counts = dict(re.findall(r"^(.+?) +(\d+)", subprocess.run([size], capture_output=True, text=True, check=True).stdout, re.MULTILINE))
    for name, count in {"nn/parallel": "2", "nn": "0", "library": "2", "program": "2", "bench": "1", "tests": "1", "files of the product": "3",
                        "words in docs": "6"}.items():
        assert counts[name] == count, (name, counts)

    set_budget("Less", 1)
    status, printed = check()
    assert status == 1 and "library has 2 lines of code, 1 more than" in printed, printed
    set_budget("More\n\nBudget: a test needs it", 2)
    assert check() == (0, ""), check()
    set_budget("Even more", 3)
    status, printed = check()
    assert status == 1 and "without a line 'Budget: REASON'" in printed, printed
