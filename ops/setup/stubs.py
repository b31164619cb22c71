"""Write a stub next to each native module, from its annotated .pyx: `python -m ops.setup.stubs`.

Stubs are not in git: setup.py calls this when it compiles, `make lint` before it checks types. What C types
do not express is annotated in the signature, or in a `# type:` after a constant or a `cdef readonly`.
Names that only annotations use are imported under `if TYPE_CHECKING:`. A name without a type in the source
has none in the stub, so that mypy complains.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("shm", "mpbroker")
# The modules from which stubs import these names.
ORIGINS = {"IntEnum": "enum", "IntFlag": "enum", "NamedTuple": "typing", "Buffer": "typing_extensions"}
SPECIAL = ("__init__", "__len__", "__iter__", "__next__", "__contains__", "__getitem__")
C_TYPES = {"bint": "bool", "double": "float", "object": ""}
_INT = re.compile(r"(const )?(unsigned )?(u?int\d+_t|int|long|long long|char|short|size_t|Py_ssize_t)")
_TEXT = re.compile(r'("""|\'\'\').*?\1|("|\')(?:\\.|(?!\2)[^\\\n])*\2|#[^\n]*', re.DOTALL)
_DEF = re.compile(r"(?:def|cpdef(?: (\w+))?) (\w+)\((.*)\)[^()]*?(?:-> *(.+?))?:")
_FIELD = re.compile(r"cdef (readonly|public) (.+?) (\w+(?:, \w+)*)(?: *# type: (.+))?")
_CONSTANTS = re.compile(r"([A-Z][A-Z0-9_]*(?:, [A-Z][A-Z0-9_]*)*) = (.+?)(?: +# type: (.+))?")
_ATTRIBUTE = re.compile(r"[a-z]\w*: [^=]+?( = .+)?|[A-Z]\w* = .+")


def logical_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield indentation and text of each statement, without comments and docstrings."""

    def shown(match: re.Match[str]) -> str:
        return "..." if match[1] else match[0] if match[0][0] != "#" or match[0].startswith("# type:") else ""

    joined = ""
    for line in _TEXT.sub(shown, path.read_text("utf-8")).splitlines():
        joined = f"{joined} {line.strip()}" if joined.strip() else line
        bare = _TEXT.sub("", joined)
        if joined.strip() and sum(map(bare.count, "([{")) <= sum(map(bare.count, ")]}")):
            indent, statement, joined = len(joined) - len(joined.lstrip()), joined.strip(), ""
            yield indent, statement


def split(text: str) -> list[str]:
    """Return the parts of a text between commas outside of brackets."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts if part.strip()]


def python_type(c_type: str) -> str:
    if "[:" in c_type:
        return "Buffer"
    return "int" if _INT.fullmatch(c_type) else C_TYPES.get(c_type, c_type)


def parameter(text: str) -> str:
    """Return a parameter as Python writes it."""
    name, equals, default = (part.strip() for part in text.partition("="))
    if re.match(r"\*?\*?\w+ *:", name):
        name, _, annotation = (part.strip() for part in name.partition(":"))
    else:
        c_type, _, name = name.removesuffix(" not None").rpartition(" ")
        annotation = python_type(c_type)
    if default == "None" and annotation and "None" not in annotation:
        annotation += " | None"
    shown = f" = {default}" if is_literal(default) else " = ..."
    return name + f": {annotation}" * bool(annotation) + shown * bool(equals)


def is_literal(value: str) -> bool:
    try:
        ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return False
    return True


class Stub:
    """The lines of a stub, and the modules that names in it may come from."""

    def __init__(self, path: Path) -> None:
        self.lines: list[str] = []
        self.origin = dict(ORIGINS)
        self.fields: dict[str, list[str]] = {}
        if (declared := path.with_suffix(".pxd")).exists():
            self._read(declared, is_declaration=True)
        self._read(path, is_declaration=False)

    def _read(self, path: Path, *, is_declaration: bool) -> None:
        owner, enum, enum_indent, decorators = "", "", -1, list[str]()
        for indent, line in logical_lines(path):
            owner, enum_indent = owner if indent else "", enum_indent if indent > enum_indent else -1
            if found := re.fullmatch(r"from ([\w.]+) c?import (.+)", line):
                # Classes: a stub names no functions of others.
                classes = [name for name in split(found[2].strip("() ")) if name[0].isupper()]
                self.origin |= dict.fromkeys(classes, found[1])
            elif found := re.fullmatch(r"import (\w+)", line):
                self.origin[found[1]] = ""
            elif found := re.match(r"cpdef enum ?(\w*) ?:", line):
                enum, enum_indent = found[1], indent
                base = "IntFlag" if enum.endswith("Flag") else "IntEnum"
                self.lines += [f"class {enum}({base}):"] if enum else []
            elif enum_indent >= 0:
                names = [re.split(r"[ =]", one)[0] for one in split(line) if one != "..."]
                self.lines += [f"    {name} = ..." if enum else f"{name}: int" for name in names]
            elif found := re.match(r"(?:cdef )?class ([A-Za-z]\w*)(\(.*\))?:", line):
                owner = found[1]
                if not is_declaration:
                    self.lines += [f"class {owner}{found[2] or ''}:", *self.fields.get(owner, ())]
            elif (found := _FIELD.match(line)) and owner:
                self._fields(found, self.fields.setdefault(owner, []) if is_declaration else self.lines)
            elif not is_declaration:
                self._statement(line, indent, owner, decorators)
                decorators = [*decorators, line] if line.startswith("@") else []

    def _fields(self, found: re.Match[str], kept: list[str]) -> None:
        annotation = found[4] or python_type(found[2])
        for name in found[3].split(", "):
            property_ = ["    @property", f"    def {name}(self) -> {annotation}: ..."]
            kept += [f"    {name}: {annotation}"] if found[1] == "public" else property_

    def _statement(self, line: str, indent: int, owner: str, decorators: list[str]) -> None:
        if (found := _DEF.match(line)) and indent == (4 if owner else 0):
            self._function(found, " " * indent, decorators)
        elif owner and indent == 4 and _ATTRIBUTE.fullmatch(line):
            self.lines.append(f"    {line}")
        elif not indent and (found := re.match(r"(\w+) = namedtuple\((.+)\)$", line)):
            fields = "".join(re.findall('"(.*?)"', found[2])[1:]).split()
            self.lines += [f"class {found[1]}(NamedTuple):", *(f"    {name}: int" for name in fields)]
        elif not indent and (found := _CONSTANTS.fullmatch(line)):
            names, is_python = found[1].split(", "), is_literal(found[2])
            self.lines += [line] if is_python else [f"{name}: {found[3] or 'int'}" for name in names]

    def _function(self, found: re.Match[str], indent: str, decorators: list[str]) -> None:
        c_type, name, parameters, returned = found.groups()
        words = [parameter(one) for one in split(parameters)]
        if name == "__cinit__":
            # With others __init__ has them, too.
            if words == ["self"] or any(re.match(r"\*\w", one) for one in words):
                return
            name = "__init__"
        if name.startswith("_") and name not in SPECIAL:
            return
        if name == "__init__" or any(one.endswith(".setter") for one in decorators) or found[0][0] == "c":
            returned = returned or python_type(c_type or "") or "None"
        self.lines += [f"{indent}{one}" for one in decorators]
        self.lines.append(f"{indent}def {name}({', '.join(words)}){f' -> {returned}' * bool(returned)}: ...")

    def text(self) -> str:
        body = "\n".join(
            line + " ..." * (line.startswith("class ") and not following.startswith("    "))
            for line, following in pairwise([*self.lines, ""])
        )
        used = set(re.findall(r"[A-Za-z_]\w*", body)) - set(re.findall(r"^class (\w+)", body, re.MULTILINE))
        origins = ((self.origin[name], name) for name in sorted(used & set(self.origin)))
        imports = [f"from {module} import {name}" if module else f"import {name}" for module, name in origins]
        return "\n".join([*imports, body, ""])


def write() -> None:
    """Write the stubs that are missing or outdated."""
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.pyx")):
        stub, text = path.with_suffix(".pyi"), Stub(path).text()
        if not stub.exists() or stub.read_text("utf-8") != text:
            stub.write_text(text, "utf-8")


if __name__ == "__main__":
    write()
