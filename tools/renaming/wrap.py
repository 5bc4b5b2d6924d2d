"""Wrap text lines over 130 characters that ruff names: the rest goes to the front of the next line of the paragraph."""

import json, subprocess, sys
from collections import defaultdict

top = sys.argv[1]
for _ in range(12):
    out = subprocess.run(
        [f"{top}/.venv/bin/ruff", "check", ".", "--select", "E501", "--output-format", "json"],
        cwd=top,
        capture_output=True,
        text=True,
    ).stdout
    found = defaultdict(list)
    for f in json.loads(out):
        found[f["filename"]].append(f["location"]["row"])
    if not found:
        break
    for path, rows in found.items():
        import ast

        try:
            tree = ast.parse(open(path, encoding="utf-8").read())
        except SyntaxError:
            print("syntax", path)
            continue
        text_rows = set()
        for n in ast.walk(tree):
            if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant) and isinstance(n.value.value, str):
                text_rows.update(range(n.lineno, n.end_lineno + 1))
        lines = open(path, encoding="utf-8").read().split("\n")
        for row in sorted(set(rows), reverse=True):
            line = lines[row - 1]
            if len(line) <= 130:
                continue
            indent = line[: len(line) - len(line.lstrip())]
            mark = "# " if line.lstrip().startswith("# ") else ""
            if not mark and line.lstrip().startswith('"""') and line.rstrip().endswith('"""'):
                import re

                body = line.strip()[3:-3]
                k = re.search(r"[.;:] ", body)
                if not k:
                    print("by hand:", path, row, line)
                    lines[row - 1] = line + "  # noqa: E501"
                    continue
                a, b = body[: k.start()] + ".", body[k.end() :]
                lines[row - 1 : row] = [indent + '"""' + a, "", indent + b[0].upper() + b[1:], indent + '"""']
                continue
            t = line.lstrip()
            if row not in text_rows and not t.startswith(("#", '"', 'f"', 'rf"', 'r"')):
                print("code by hand:", path, row, line)
                continue
            if t.startswith(('"', 'f"', 'rf"', 'r"')) and not t.startswith('"""'):
                prefix = t[: t.index('"') + 1]
                cut = line.rfind(" ", 0, 127)
                lines[row - 1 : row] = [line[: cut + 1] + '"', indent + prefix + line[cut + 1 :]]
                continue
            cut = line.rfind(" ", len(indent) + len(mark) + 1, 131)
            head, rest = line[:cut], line[cut + 1 :]
            nxt = lines[row] if row < len(lines) else ""
            nindent = nxt[: len(nxt) - len(nxt.lstrip())]
            joins = (
                nxt.strip()
                and nindent == indent
                and not nxt.strip().startswith(('"""', "- ", "* ", "| "))
                and nxt.lstrip().startswith(mark)
                and not rest.endswith((".", '"""'))
            )
            lines[row - 1] = head
            if joins:
                lines[row] = indent + mark + rest + " " + nxt.lstrip()[len(mark) :]
            else:
                lines.insert(row, indent + mark + rest)
        open(path, "w", encoding="utf-8").write("\n".join(lines))
