"""Rename what table.json lists, in all Python files, by their scopes; then names in backticks in texts. It goes with the last rename.

    python tools/renaming/rename.py TREE [--dry] [--only=PACKAGE,...]

Then `methods.py TREE` renames methods by class and follows mypy's errors, and `wrap.py TREE` breaks lines that became too long.
"""

from __future__ import annotations
import ast, sys, re, os, subprocess, json
from pathlib import Path
from collections import defaultdict

TOP = Path(sys.argv[1])
DRY = "--dry" in sys.argv
ONLY = next((a.split("=")[1] for a in sys.argv if a.startswith("--only=")), None)
FOLDERS = ("xrt", "tests", "tools", "benchmarks", "examples")
_table = json.loads((Path(__file__).parent / "table.json").read_text())
SYMBOLS = {(m, o): n for m, o, n in _table["symbols"]}
MOVES: dict = {}
ATTRS: dict = {}
ATTR_HOME: dict = {}
KW: dict = {}
if ONLY:
    pre = tuple(ONLY.split(","))
    inside = lambda m: any(m == p or m.startswith(p + ".") for p in pre)
    SYMBOLS = {k: v for k, v in SYMBOLS.items() if inside(k[0])}
    MOVES = {k: v for k, v in MOVES.items() if inside(k)}
    ATTRS = {k: v for k, v in ATTRS.items() if inside(ATTR_HOME.get(k, ""))}

files = {}
for folder in FOLDERS:
    for path in sorted((TOP / folder).rglob("*.py")):
        if "_pb2" in path.name:
            continue
        rel = path.relative_to(TOP)
        parts = list(rel.with_suffix("").parts)
        is_pkg = parts[-1] == "__init__"
        if is_pkg:
            parts.pop()
        files[".".join(parts)] = (path, is_pkg)


class Mod:
    pass


mods = {}
for name, (path, is_pkg) in files.items():
    m = Mod()
    m.name = name
    m.path = path
    m.pkg = is_pkg
    m.text = path.read_text(encoding="utf-8")
    m.tree = ast.parse(m.text)
    m.lines = m.text.splitlines(keepends=True)
    m.whole = []
    m.strings = []
    m.doctests = []
    m.edits = []  # (line, col, endcol, new)
    mods[name] = m


def absolute(m, node):
    if node.level == 0:
        return node.module
    base = m.name.split(".") if m.pkg else m.name.split(".")[:-1]
    base = base[: len(base) - (node.level - 1)]
    return ".".join(base + ([node.module] if node.module else []))


# ---- scopes
class Scope:
    def __init__(self, parent, kind):
        self.parent, self.kind, self.bind, self.globals = parent, kind, {}, set()

    def lookup(self, name, first=True):
        s = self
        while s:
            if (s.kind != "class" or s is self) and name in s.bind:
                return s, s.bind[name]
            s = s.parent
        return None, None


LOCAL = ("local",)


def bind_target(scope, t):
    for n in ast.walk(t):
        if isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Store, ast.Del)):
            scope.bind.setdefault(n.id, LOCAL)


def collect(m, node, scope):
    """Bind all names of this scope (not of nested ones)."""

    def visit(n):
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            scope.bind[n.name] = ("def", m.name, n.name) if scope.kind == "module" else ("localdef", n.name)
            for d in n.decorator_list:
                visit(d)
            if not isinstance(n, ast.ClassDef):
                for d in [*n.args.defaults, *[x for x in n.args.kw_defaults if x]]:
                    visit(d)
            return
        if isinstance(n, ast.Lambda):
            return
        if isinstance(n, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            for w in ast.walk(n):
                if isinstance(w, ast.NamedExpr):
                    scope.bind.setdefault(w.target.id, LOCAL)
            return
        if isinstance(n, ast.ImportFrom):
            base = absolute(m, n)
            for a in n.names:
                if a.name == "*":
                    continue
                scope.bind[a.asname or a.name] = ("from", base, a.name, bool(a.asname))
            return
        if isinstance(n, ast.Import):
            for a in n.names:
                if a.asname:
                    scope.bind[a.asname] = ("module", a.name)
                else:
                    scope.bind[a.name.split(".")[0]] = ("module", a.name.split(".")[0])
            return
        if isinstance(n, (ast.Global, ast.Nonlocal)):
            scope.globals.update(n.names)
            return
        if isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Store, ast.Del)):
            if n.id not in scope.globals and n.id not in scope.bind:
                scope.bind[n.id] = ("def", m.name, n.id) if scope.kind == "module" else LOCAL
        if isinstance(n, ast.ExceptHandler) and n.name:
            scope.bind.setdefault(n.name, LOCAL)
        if isinstance(n, (ast.MatchAs, ast.MatchStar)) and n.name:
            scope.bind.setdefault(n.name, LOCAL)
        for c in ast.iter_child_nodes(n):
            visit(c)

    for c in node:
        visit(c)


for m in mods.values():
    m.scope = Scope(None, "module")
    collect(m, m.tree.body, m.scope)


def resolve(mod, name, seen=()):
    """Origin of a module-level name: ('sym', module, name) or ('mod', module)."""
    if (mod, name) in seen:
        return None
    if mod in mods:
        b = mods[mod].scope.bind.get(name)
        if b and b[0] == "def":
            return ("sym", mod, name)
        if b and b[0] == "from":
            r = resolve(b[1], b[2], (*seen, (mod, name)))
            if r:
                return r
        if b and b[0] == "module":
            return ("mod", b[1])
    if f"{mod}.{name}" in mods:
        return ("mod", f"{mod}.{name}")
    return None


def origin(b):
    if not b:
        return None
    if b[0] == "def":
        return ("sym", b[1], b[2])
    if b[0] == "from":
        return resolve(b[1], b[2])
    if b[0] == "module":
        return ("mod", b[1]) if b[1] in mods else None
    return None


def new_of(o):
    if o and o[0] == "mod" and o[1] in MOVES and MOVES[o[1]].rpartition(".")[2] != o[1].rpartition(".")[2]:
        return MOVES[o[1]].rpartition(".")[2]
    return SYMBOLS.get((o[1], o[2])) if o and o[0] == "sym" else None


problems = []


def put(m, line, col, end, old, new):
    src = m.lines[line - 1].encode()
    got = src[col:end].decode()
    if got != old:
        problems.append(f"{m.name}:{line}: expected {old!r} got {got!r}")
        return
    m.edits.append((line, col, end, new))


class Walk(ast.NodeVisitor):
    def __init__(self, m):
        self.m, self.scope, self.klass = m, m.scope, None

    def expr_origin(self, n):
        if isinstance(n, ast.Name):
            s, b = self.scope.lookup(n.id)
            return origin(b)
        if isinstance(n, ast.Attribute):
            o = self.expr_origin(n.value)
            if o and o[0] == "mod":
                return resolve(o[1], n.attr)
        return None

    def check_free(self, new, node):
        s, b = self.scope.lookup(new)
        if s and not (b[0] in ("def", "from") and False):
            problems.append(f"{self.m.name}:{node.lineno}: {new!r} is bound here already ({b})")

    def visit_Name(self, n):
        s, b = self.scope.lookup(n.id)
        if not b:
            return
        if b[0] == "from" and b[3]:
            return  # an alias keeps its name
        new = new_of(origin(b))
        if new and (b[0] != "def" or True):
            put(self.m, n.lineno, n.col_offset, n.end_col_offset, n.id, new)
            self.check_free(new, n)

    def visit_Attribute(self, n):
        self.visit(n.value)
        o = self.expr_origin(n.value)
        new = None
        if o and o[0] == "mod":
            new = new_of(resolve(o[1], n.attr))
        elif n.attr in ATTRS and not (isinstance(n.value, ast.Name) and n.value.id in ("np", "os", "ast", "re")):
            new = ATTRS[n.attr]
        if new:
            put(self.m, n.end_lineno, n.end_col_offset - len(n.attr.encode()), n.end_col_offset, n.attr, new)

    def visit_ImportFrom(self, n):
        base = absolute(self.m, n)
        moved = []
        for a in n.names:
            o = resolve(base, a.name) if base else None
            if o and o[0] == "mod" and o[1] in MOVES and f"{base}.{a.name}" == o[1]:
                moved.append((a, o))
                continue
            new = new_of(o)
            if new:
                # redundant alias "X as X"
                put(self.m, a.lineno, a.col_offset, a.col_offset + len(a.name.encode()), a.name, new)
                if a.asname == a.name:
                    put(self.m, a.end_lineno, a.end_col_offset - len(a.asname.encode()), a.end_col_offset, a.asname, new)
        if moved:
            rest = [a for a in n.names if a not in [x for x, _ in moved]]

            def alias(name, a):
                return name + (f" as {a.asname}" if a.asname and a.asname != a.name else f" as {name}" if a.asname else "")

            statements = [
                f"from {MOVES[o[1]].rpartition('.')[0]} import {alias(MOVES[o[1]].rpartition('.')[2], a)}" for a, o in moved
            ]
            if rest:
                statements.insert(
                    0, f"from {n.module} import " + ", ".join(alias(new_of(resolve(base, a.name)) or a.name, a) for a in rest)
                )
            self.m.edits = [e for e in self.m.edits if not n.lineno <= e[0] <= n.end_lineno]
            indent = " " * n.col_offset
            self.m.whole.append((n.lineno, n.end_lineno, "".join(indent + x + "\n" for x in statements)))

    def define(self, n, old, new):
        line = self.m.lines[n.lineno - 1]
        kw = "class " if isinstance(n, ast.ClassDef) else "def "
        col = len(line[: line.index(kw) + len(kw)].encode())
        put(self.m, n.lineno, col, col + len(old.encode()), old, new)

    def visit_FunctionDef(self, n):
        if self.scope.kind == "module":
            new = SYMBOLS.get((self.m.name, n.name))
            if new:
                self.define(n, n.name, new)
        elif self.scope.kind == "class" and n.name in ATTRS:
            self.define(n, n.name, ATTRS[n.name])
        for d in n.decorator_list:
            self.visit(d)
        for d in [*n.args.defaults, *[x for x in n.args.kw_defaults if x]]:
            self.visit(d)
        for a in [*n.args.posonlyargs, *n.args.args, *n.args.kwonlyargs, n.args.vararg, n.args.kwarg]:
            if a and a.annotation:
                self.visit(a.annotation)
        if n.returns:
            self.visit(n.returns)
        inner = Scope(self.scope, "function")
        for a in [*n.args.posonlyargs, *n.args.args, *n.args.kwonlyargs, n.args.vararg, n.args.kwarg]:
            if a:
                inner.bind[a.arg] = LOCAL
        collect(self.m, n.body, inner)
        old, self.scope = self.scope, inner
        for s in n.body:
            self.visit(s)
        self.scope = old

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, n):
        for d in [*n.args.defaults, *[x for x in n.args.kw_defaults if x]]:
            self.visit(d)
        inner = Scope(self.scope, "function")
        for a in [*n.args.posonlyargs, *n.args.args, *n.args.kwonlyargs, n.args.vararg, n.args.kwarg]:
            if a:
                inner.bind[a.arg] = LOCAL
        old, self.scope = self.scope, inner
        self.visit(n.body)
        self.scope = old

    def comp(self, n):
        inner = Scope(self.scope, "function")
        for g in n.generators:
            bind_target(inner, g.target)
        self.visit(n.generators[0].iter)
        old, self.scope = self.scope, inner
        for i, g in enumerate(n.generators):
            if i:
                self.visit(g.iter)
            self.visit(g.target)
            for c in g.ifs:
                self.visit(c)
        if isinstance(n, ast.DictComp):
            self.visit(n.key)
            self.visit(n.value)
        else:
            self.visit(n.elt)
        self.scope = old

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = comp

    def visit_ClassDef(self, n):
        if self.scope.kind == "module":
            new = SYMBOLS.get((self.m.name, n.name))
            if new:
                self.define(n, n.name, new)
        for d in [*n.decorator_list, *n.bases, *[k.value for k in n.keywords]]:
            self.visit(d)
        inner = Scope(self.scope, "class")
        collect(self.m, n.body, inner)
        old, self.scope = self.scope, inner
        for s in n.body:
            t = (
                s.target
                if isinstance(s, ast.AnnAssign)
                else s.targets[0]
                if isinstance(s, ast.Assign) and len(s.targets) == 1
                else None
            )
            if isinstance(t, ast.Name) and t.id in ATTRS:
                put(self.m, t.lineno, t.col_offset, t.end_col_offset, t.id, ATTRS[t.id])
            self.visit(s)
        self.scope = old

    def visit_Constant(self, n):
        if not isinstance(n.value, str) or len(n.value) > 6000 or not ("xrt" in n.value or ">>>" in n.value):
            return
        if re.fullmatch(r"xrt(\.\w+)+", n.value):
            mod, _, name = n.value.rpartition(".")
            new = new_of(resolve(mod, name)) if resolve(mod, name) and resolve(mod, name)[0] == "sym" else None
            if new:
                self.m.strings.append((n, name, new))
            return
        if ">>>" in n.value:
            self.m.doctests.append(n)
        for k in re.finditer(r"from (xrt[\w.]*) import ([\w, ]+)", n.value):
            for name in re.split(r",\s*", k.group(2)):
                name = name.strip().split(" ")[0]
                o = resolve(k.group(1), name)
                new = new_of(o) if o and o[0] == "sym" else None
                if new:
                    self.m.strings.append((n, name, new))

    def visit_AnnAssign(self, n):
        if isinstance(n.value, ast.Constant) and isinstance(n.value.value, str) and "TypeAlias" in ast.unparse(n.annotation):
            self.text_type(n.value)
        self.generic_visit(n)

    def text_type(self, c):
        def new(k):
            s, b = self.scope.lookup(k.group(0))
            return (new_of(origin(b)) if b else None) or k.group(0)

        text = re.sub(r"[A-Za-z_]\w*", new, c.value)
        if text != c.value:
            self.string(c, text)

    def visit_Assign(self, n):
        if self.scope.kind == "module" and any(isinstance(t, ast.Name) and t.id == "__all__" for t in n.targets):
            self.all_(n.value)
        self.generic_visit(n)

    def visit_AugAssign(self, n):
        if isinstance(n.target, ast.Name) and n.target.id == "__all__":
            self.all_(n.value)
        self.generic_visit(n)

    def all_(self, v):
        for c in ast.walk(v):
            if isinstance(c, ast.Constant) and isinstance(c.value, str):
                new = new_of(resolve(self.m.name, c.value))
                if new:
                    self.string(c, new)

    def string(self, c, new):
        put(self.m, c.lineno, c.col_offset + 1, c.end_col_offset - 1, c.value, new)

    def visit_Call(self, n):
        # setattr(obj, "name"), patch.object, getattr, hasattr, delattr
        a = n.args
        if (
            isinstance(n.func, ast.Name)
            and n.func.id == "cast"
            and a
            and isinstance(a[0], ast.Constant)
            and isinstance(a[0].value, str)
        ):
            self.text_type(a[0])
        fname = n.func.attr if isinstance(n.func, ast.Attribute) else n.func.id if isinstance(n.func, ast.Name) else ""
        if (
            fname in ("setattr", "getattr", "hasattr", "delattr", "object")
            and len(a) >= 2
            and isinstance(a[1], ast.Constant)
            and isinstance(a[1].value, str)
        ):
            o = self.expr_origin(a[0])
            new = (
                new_of(resolve(o[1], a[1].value))
                if o and o[0] == "mod"
                else ATTRS.get(a[1].value)
                if not (o and o[0] == "mod")
                else None
            )
            if new:
                self.string(a[1], new)
        for k in n.keywords:
            pass
        self.generic_visit(n)


for m in mods.values():
    w = Walk(m)
    for s in m.tree.body:
        w.visit(s)


def renamed_binding(m, name, b):
    if b[0] == "from" and b[3]:
        return name
    return new_of(origin(b)) or name


for m in mods.values():
    after = {}
    for name, b in m.scope.bind.items():
        after.setdefault(renamed_binding(m, name, b), []).append(name)
    for new, olds in after.items():
        if len(olds) > 1:
            problems.append(f"{m.name}: {olds} all become {new!r}")

# keyword arguments and dataclass fields of ATTRS are renamed where the table says so
if not ONLY or True:
    for m in mods.values():
        for n in ast.walk(m.tree):
            if isinstance(n, ast.keyword) and n.arg in KW and n.arg in ATTRS:
                put(m, n.lineno, n.col_offset, n.col_offset + len(n.arg), n.arg, ATTRS[n.arg])

# string annotations are off: the tree uses from __future__ annotations, which ast parses as expressions.

missing = {k for k in SYMBOLS if "." not in k[1]} - {
    (m.name, n) for m in mods.values() for n in m.scope.bind if m.scope.bind[n][0] == "def"
}
for k in sorted(missing):
    problems.append(f"no such symbol: {k}")
for k in MOVES:
    if k not in mods and not any(n.startswith(k + ".") for n in mods):
        problems.append(f"no such module: {k}")

seen = set()
out = [p for p in problems if not (p in seen or seen.add(p))]
print("\n".join(out))
print(
    len(out),
    "problems;",
    sum(len(m.edits) for m in mods.values()),
    "edits in",
    sum(bool(m.edits) for m in mods.values()),
    "files",
)
if DRY:
    sys.exit()

for m in mods.values():
    if not m.edits and not m.whole and not m.strings and not m.doctests:
        continue
    by_line = defaultdict(set)
    for e in m.edits:
        by_line[e[0]].add(e[1:])
    for line, es in by_line.items():
        src = m.lines[line - 1].encode()
        for col, end, new in sorted(es, reverse=True):
            src = src[:col] + new.encode() + src[end:]
        m.lines[line - 1] = src.decode()
    names = {name: new_of(origin(b)) for name, b in m.scope.bind.items() if new_of(origin(b))}
    for n in m.doctests:
        for row in range(n.lineno, n.end_lineno + 1):
            line = m.lines[row - 1]
            if line.lstrip().startswith((">>>", "...")) or re.match(r"\s*\w+\(", line):
                m.lines[row - 1] = re.sub(r"(?<![\w.'\"])[A-Za-z_]\w*(?=[(.])", lambda k: names.get(k.group(0), k.group(0)), line)
    for n, name, new in m.strings:
        for row in range(n.lineno, n.end_lineno + 1):
            m.lines[row - 1] = re.sub(rf"(?<![\w]){name}(?!\w)", new, m.lines[row - 1])
    for first, last, text in sorted(m.whole, reverse=True):
        m.lines[first - 1 : last] = [text]
    m.path.write_text("".join(m.lines), encoding="utf-8")

# ---- texts: docstrings, comments, documents
words = {}
for (mod, name), new in SYMBOLS.items():
    words.setdefault(name, set()).add(new)
# A name that exists with several origins in the tree is no unique word.
defined = defaultdict(set)
for m in mods.values():
    if m.name.startswith("xrt"):
        for n, b in m.scope.bind.items():
            if b[0] == "def":
                defined[n].add(m.name)
unique = {
    n: next(iter(v))
    for n, v in words.items()
    if (n[0].isupper() or "_" in n.strip("_")) and len(v) == 1 and len(defined[n]) <= len([1 for k in SYMBOLS if k[1] == n])
}
pattern = (
    re.compile(
        r"(?<=`)(?:~?xrt\.)?(" + "|".join(sorted(map(re.escape, [*unique, *ATTRS]), key=len, reverse=True)) + r")(?=[`(\[.])"
    )
    if unique
    else None
)


def texts():
    for folder in (*FOLDERS, "docs"):
        for suffix in ("*.py", "*.md", "*.pyi"):
            yield from (TOP / folder).rglob(suffix)
    yield from (
        TOP / n
        for n in ("README.md", "CONTRIBUTING.md", "pyproject.toml", "MANIFEST.in", "CMakeLists.txt", "setup.py", "Makefile")
    )


for path in texts():
    if not path.exists():
        continue
    text = path.read_text(encoding="utf-8")
    before = text
    if pattern and path.suffix != ".toml":
        text = pattern.sub(lambda k: k.group(0)[: k.start(1) - k.start()] + (unique.get(k.group(1)) or ATTRS[k.group(1)]), text)
    for old, new in sorted(MOVES.items(), key=lambda kv: -len(kv[0])):
        text = re.sub(rf"(?<![\w.]){re.escape(old)}(?![\w])(?!\.py)", new.replace("\\", ""), text)
        text = re.sub(rf"(?<![\w/]){re.escape(old.replace('.', '/'))}(?=\.py|/|\b)(?!\w)", new.replace(".", "/"), text)
    if text != before:
        path.write_text(text, encoding="utf-8")


def git(*a):
    subprocess.run(["git", "-C", str(TOP), *a], check=True)


back = {}
for old, new in MOVES.items():
    if old not in mods:
        continue
    src = mods[old].path
    dst = TOP / (new.replace(".", "/") + ("/__init__.py" if mods[old].pkg else ".py"))
    if dst.exists():
        print("exists:", dst)
        continue
    dst.parent.mkdir(parents=True, exist_ok=True)
    git("mv", str(src), str(dst))
