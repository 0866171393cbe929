"""Prints random templates, their variables and Jinja2's results, a JSON object a line:
`python differential.py SEED COUNT`. The environment is the one that transformers give chat templates; jinja_cases.py has it.
"expected" is the text, or null where Jinja2 fails, with the reason in "error"."""

import json
import random
import sys
import warnings

import jinja2.sandbox
from jinja_environment import environment


class Bounded(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Refuses powers and products that would take Python forever."""

    intercepted_binops = frozenset(["**", "*"])

    def call_binop(self, context, operator, left, right):
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() * (right if operator == "**" else 1) > 4096:
            raise OverflowError("number of more than 4096 bits")
        if operator == "*" and isinstance(right if hasattr(left, "__len__") else left, int) and (right if hasattr(left, "__len__") else left) > 10**6:
            raise MemoryError("too long")
        return super().call_binop(context, operator, left, right)


ENV = environment(Bounded)
WORDS = ["", "a", "B", "ab c", "x y  z", "Hello World", "it's", 'q"t', "<b>&", "a\nb\n\nc", "  pad ", "ß", "Ünï", "漢字", "😀", "1", "42", "4.5", "-7",
         "1e3", "0x1f", "a-b_c", "{}", "%s", "a,b,,c", "tab\there", "\\", "key", "name", "é\u0301"]
CONTEXT = {
    "x": None, "t": True, "f": False, "n": 7, "z": 0, "m": -3, "r": 1.5, "q": -0.25, "big": 123456789012345678901234567890, "h": 1e22,
    "s": "Hällo Wörld 😀 it's", "e": "", "w": "  \t a b \n ", "ml": "one\ntwo\n\n three\n", "num": "12",
    "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "le": [], "lm": [1, "a", None, True, 2.5, [1], {"k": 1}], "ll": [[1, "x"], [2, "y"]],
    "d": {"b": 1, "a": {"c": [1, "two", None]}, "items": "own", "k": "v"}, "de": {}, "dn": {"x": 3, "y": 1, "Z": 2},
    "people": [{"name": "Bo", "age": 3, "on": True}, {"name": "al", "age": 1, "on": False, "tags": ["p", "q"]}, {"name": "Cy", "age": 3}],
    "messages": [{"role": "system", "content": " Be terse.\n"}, {"role": "user", "content": "Hi <b>"},
                 {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2], "b": None}}}]},
                 {"role": "tool", "content": [{"type": "text", "text": "ok"}]}],
    "tools": [{"type": "function", "function": {"name": "w", "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "Zürich"}, "days": {"type": "array", "items": {"type": "integer"}}}, "required": ["city"]}}}],
}
NAMES = [*CONTEXT, "nothing"]
TEXTS, NUMBERS = ["s", "e", "w", "ml", "num"], ["n", "z", "m", "r", "q", "t", "big", "h"]
LISTS, DICTS = ["l", "ls", "le", "lm", "ll", "people", "messages", "tools"], ["d", "de", "dn", "people[0]", "messages[2]"]
KEYS = ["a", "b", "c", "k", "name", "age", "on", "role", "content", "tool_calls", "function", "x", "items", "keys", "nope", "tags", "arguments"]


class Writer:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.names = list(NAMES)

    def one(self, *choices):
        return self.r.choice(choices)

    def quoted(self, text):
        return self.one("'", '"').join(["", text.replace("\\", "\\\\").replace("\n", "\\n").replace("'", "\\'").replace('"', '\\"'), ""])

    def text(self, depth=0):
        r = self.r.random()
        if depth > 2 or r < 0.3:
            return self.quoted(self.r.choice(WORDS))
        if r < 0.6:
            return self.r.choice(TEXTS)
        if r < 0.8:
            return "(" + self.expression(depth + 1) + ")|string"
        return self.postfix(self.text(depth + 1), "text", depth + 1)

    def number(self, depth=0):
        r = self.r.random()
        if depth > 2 or r < 0.4:
            return self.one("0", "1", "2", "3", "7", "10", "-1", "-2", "1.5", "0.1", "2.5", "-0.0", "1e3", "100", "1_000", "0x1F", "0.0001", "1e16", "12345.678")
        if r < 0.7:
            return self.r.choice(NUMBERS)
        return "(" + self.number(depth + 1) + self.one(" + ", " - ", " * ", " / ", " // ", " % ", " ** ") + self.number(depth + 1) + ")"

    def small(self):
        return str(self.r.randint(-4, 6))

    def list(self, depth=0):
        r = self.r.random()
        if depth > 2 or r < 0.5:
            return self.r.choice(LISTS)
        if r < 0.8:
            items = ", ".join(self.expression(depth + 2) for _ in range(self.r.randint(0, 3)))
            return self.one("[" + items + "]", "(" + items + ",)" if items else "()")
        return self.one("range(%s)" % self.r.randint(0, 5), "range(%s, %s, %s)" % (self.small(), self.small(), self.one(1, 2, -1, -2)), "dn.items()", "d.keys()",
                        "dn.values()", "dn|dictsort", "s.split()", "people|groupby('age')", "ls|sort", "l|reverse|list", "lm|unique|list", "l|batch(2)|list")

    def dict(self, depth=0):
        if depth > 2 or self.r.random() < 0.6:
            return self.r.choice(DICTS)
        pairs = ", ".join(self.one(self.quoted(self.r.choice(KEYS)), self.number(3), "none", "true", "nothing", "(1, 'a')", self.expression(3)) + ": "
                          + self.expression(depth + 2) for _ in range(self.r.randint(0, 3)))
        return self.one("{" + pairs + "}", "dict(a=%s, b=%s)" % (self.number(2), self.text(2)), "dict([('k', 1), (2, 'z')])")

    def any(self, depth=0):
        return self.one(self.text, self.number, self.list, self.dict, lambda _: self.r.choice(self.names), self.list, self.text)(depth)

    def arguments(self, depth):
        return ", ".join(self.any(depth + 1) for _ in range(self.r.randint(0, 2)))

    def text_call(self, d):
        t, n = lambda: self.text(d + 1), self.small
        return self.one(
            "upper()", "lower()", "title()", "capitalize()", "swapcase()", "casefold()", "strip()", "lstrip()", "rstrip()",
            "strip(%s)" % t(), "lstrip(%s)" % t(), "rstrip(%s)" % t(), "startswith(%s)" % t(), "endswith((%s, %s))" % (t(), t()), "startswith(%s, %s)" % (t(), n()),
            "replace(%s, %s)" % (t(), t()), "replace(%s, %s, %s)" % (t(), t(), n()), "split()", "split(%s)" % t(), "split(%s, %s)" % (t(), n()), "split(none, %s)" % n(),
            "rsplit()", "rsplit(%s, %s)" % (t(), n()), "rsplit(none, %s)" % n(), "split(maxsplit=1)", "splitlines()", "splitlines(true)", "partition(%s)" % t(), "rpartition(%s)" % t(),
            "find(%s)" % t(), "rfind(%s)" % t(), "find(%s, %s)" % (t(), n()), "find(%s, %s, %s)" % (t(), n(), n()), "index(%s)" % t(), "rindex(%s)" % t(), "count(%s)" % t(),
            "count(%s, %s, %s)" % (t(), n(), n()), "zfill(%s)" % n(), "ljust(%s, '*')" % n(), "rjust(%s)" % self.one(5, 12), "center(%s, '-')" % self.one(4, 9, 10),
            "isdigit()", "isalpha()", "isalnum()", "isspace()", "isupper()", "islower()", "istitle()", "isdecimal()", "isnumeric()", "isidentifier()", "isascii()", "isprintable()",
            "removeprefix(%s)" % t(), "removesuffix(%s)" % t(), "join(%s)" % self.list(d + 1), "expandtabs(4)", "format(%s)" % self.arguments(d), "nope", "nope()", "__class__")

    def postfix(self, base, kind, d):
        n = self.small
        common = ["[%s]" % n(), "[%s]" % self.expression(d + 2), "." + self.r.choice(KEYS), "['%s']" % self.r.choice(KEYS), ".0", "[1.0]", "[true]",
                  "[%s:%s]" % (self.one("", n()), self.one("", n())), "[%s:%s:%s]" % (self.one("", n()), self.one("", n()), self.one("", "-1", "2", n())), "[(1, 'a')]"]
        if kind in ("number", "dict"):
            # Jinja2 folds a wrong slice of a constant to undefined; of anything else it fails.
            common = [one for one in common if ":" not in one]
        own = {"text": ["." + self.text_call(d)] * 4,
               "list": [".index(%s)" % self.any(d + 1), ".count(%s)" % self.any(d + 1), ".copy()", ".append", ".pop(0)", "[0].name", "[-1]", "[0]"],
               "dict": [".get(%s)" % self.expression(d + 1), ".get(%s, %s)" % (self.expression(d + 1), self.any(d + 1)), ".items()", ".keys()", ".values()", ".copy()", ".update({})", ".pop"],
               "number": [".real", ".bit_length()", ".numerator"], "any": []}[kind]
        return "(" + base + ")" + self.r.choice(self.r.choice([common, own or common]))

    def filter(self, d):
        t, n, a = lambda: self.text(d + 1), self.small, lambda: self.any(d + 1)
        key = self.r.choice(KEYS)
        flag = self.one("true", "false")
        return self.one(
            "abs", "attr('%s')" % key, "batch(%s)" % n(), "batch(2, %s)" % a(), "capitalize", "center(%s)" % self.one(3, 8, 11), "count", "length", "default(%s)" % a(), "default(%s, true)" % a(),
            "d('D')", "dictsort", "dictsort(by='value')", "dictsort(true, reverse=true)", "e", "escape", "forceescape", "filesizeformat", "filesizeformat(true)", "first", "last", "float", "float(%s)" % a(),
            "format(%s)" % self.arguments(d), "groupby('%s')" % key, "groupby('%s', default=%s)" % (key, a()), "groupby('%s', case_sensitive=true)|list" % key,
            "indent", "indent(2, true)", "indent('> ', blank=true)", "int", "int(%s)" % a(), "int(base=%s)" % self.one(2, 8, 10, 16, 36, 0), "items|list", "items|sort", "join", "join(%s)" % t(),
            "join(', ', attribute='%s')" % key, "list", "lower", "map('%s')|list" % self.one("string", "upper", "length", "int", "trim", "first", "tojson", "abs"), "map(attribute='%s')|list" % key,
            "map(attribute='%s', default=%s)|join('/')" % (key, a()), "map('default', %s)|list" % a(), "map('replace', %s, %s)|list" % (t(), t()), "max", "min", "max(attribute='%s')" % key,
            "min(case_sensitive=true)", "reject('%s')|list" % self.one("none", "odd", "string", "defined"), "rejectattr('%s')|list" % key, "rejectattr('%s', 'equalto', %s)|list" % (key, a()),
            "replace(%s, %s)" % (t(), t()), "replace(%s, %s, %s)" % (t(), t(), n()), "reverse|list", "reverse|join", "round", "round(%s)" % n(), "round(1, 'ceil')", "round(%s, 'floor')" % self.one(0, 1, 2, -1),
            "safe", "select|list", "select('%s', %s)|list" % (self.one("gt", "eq", "ne", "in", "lt"), a()), "selectattr('%s')|list" % key, "selectattr('%s', 'defined')|map(attribute='%s')|list" % (key, key),
            "selectattr('%s', '%s', %s)|list|length" % (key, self.one("==", "ne", "in", "gt"), a()), "slice(%s)|list" % self.one(1, 2, 3, n()), "slice(2, %s)|list" % a(),
            "sort", "sort(reverse=%s)" % flag, "sort(case_sensitive=%s)" % flag, "sort(attribute='%s')" % key, "sort(attribute='age,name')", "string", "sum", "sum(start=%s)" % a(), "sum(attribute='age')",
            "title", "tojson", "tojson(indent=%s)" % self.one(0, 2, "none", "'\\t'", "true", -1), "tojson(ensure_ascii=true)", "tojson(true)", "tojson(separators=(',', ':'))", "tojson(sort_keys=true)",
            "tojson(indent=1, separators=(', ', '= '), sort_keys=true)", "trim", "trim(%s)" % t(), "truncate(%s)" % self.one(3, 4, 9), "truncate(5, true, '…', 0)", "truncate(6, end='', leeway=0)", "unique|list",
            "unique(true)|list", "unique(attribute='%s')|list" % key, "upper", "urlencode", "wordcount", "xmlattr", "xmlattr(false)", "map('nope')")

    def test(self, d):
        a = lambda: "(" + self.any(d + 1) + ")"
        return self.one("defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number", "string", "mapping", "iterable", "sequence", "callable", "lower", "upper",
                        "odd", "even", "divisibleby " + self.one("2", "3", "0", "1.5"), "sameas none", "sameas true", "escaped", "filter", "test",
                        "in " + a(), "in" + a(), "eq " + a() if False else "eq" + a(), "==" if False else "equalto" + a(), "ne" + a(), "lt" + a(), "gt" + a(), "ge" + a(), "le" + a(), "lessthan" + a())

    def format_text(self, d):
        a = lambda: self.one(self.number(d + 1), self.number(d + 1), self.any(d + 1))
        spec = self.one("", "5", "-6", "05", "+", " d", ".2", "8.3", "#", "<7", "^9", "+.1", "*^11", "0=8", ",", "_", "010,", ".0", "x<4")
        if self.r.random() < 0.5:
            kind = self.one(*"diuoxXeEfFgGcrsa%")
            flags = self.one("", "5", "-6", "05", "+", " ", ".2", "8.3", "#", "+.1", "-+8.2", "#.3", "010.4", "*", ".*", "(a)", "(k)5")
            extra = ("%s, " % self.small()) if "*" in flags else ""
            right = self.one(a(), "(%s%s)" % (extra, a() + ("" if extra else ",")), "(%s%s,)" % (extra, a()), "{'a': %s, 'k': 'v'}" % a(), "(%s, %s)" % (a(), a()))
            return "%s %% %s" % (self.quoted("<%" + flags + kind + ">"), right)
        field = self.one("", "0", "1", "k", "0.name", "0[a]", "0[0]", "k.b", "!r", "!s", "0!a", "2")
        kind = self.one("", "", *"dxXobeEfFgGnsc%")
        return "%s.format(%s, %s, k=%s)" % (self.quoted("{{" + "{" + field + (":" + spec + kind if self.r.random() < 0.8 else "") + "}}}"), a(), a(), a())

    def expression(self, depth=0):
        if depth > 3:
            return self.one(self.r.choice(self.names), self.number(3), self.quoted(self.r.choice(WORDS)))
        d, r = depth + 1, self.r.random()
        if r < 0.25:
            base = self.one(self.text, self.number, self.list, self.dict, self.any)
            return "(" + base(d) + ")|" + self.filter(d)
        if r < 0.35:
            return "(" + self.any(d) + ") is " + self.one("", "", "not ") + self.test(d)
        if r < 0.5:
            kind = self.one("text", "text", "list", "dict", "dict", "number", "any")
            return self.postfix(getattr(self, kind)(d), kind, d)
        if r < 0.6:
            return self.any(d) + self.one(" + ", " - ", " * ", " / ", " // ", " % ", " ** ", " ~ ", " ~ ") + self.any(d)
        if r < 0.7:
            return "(" + self.any(d) + self.one(" == ", " != ", " < ", " <= ", " > ", " >= ", " in ", " not in ") + self.any(d) + self.one("", "", " < %s" % self.number(d), " == %s" % self.any(d)) + ")"
        if r < 0.76:
            return self.any(d) + self.one(" and ", " or ", " and not ") + self.any(d)
        if r < 0.81:
            return self.any(d) + " if " + self.any(d) + self.one("", " else " + self.any(d))
        if r < 0.84:
            return self.one("not ", "-", "+") + "(" + self.any(d) + ")"
        if r < 0.92:
            return self.format_text(d)
        return self.any(d)

    def body(self, depth):
        return "".join(self.statement(depth) for _ in range(self.r.randint(1, 3)))

    def open(self):
        return self.one("{%", "{%", "{%-", "{%+")

    def close(self):
        return self.one("%}", "%}", "-%}", "+%}") + self.one("", "", "\n", " ", "\n  ")

    def tag(self, text):
        return self.one("", "", "  ", "\n  ") + self.open() + " " + text + " " + self.close()

    def target(self):
        return self.one("v", "v", "u", "n", "i", "l")

    def statement(self, depth=0):
        d, r = depth + 1, self.r.random()
        if depth > 3 or r < 0.35:
            return self.one("{{ ", "{{- ", "{{") + self.expression(1) + self.one(" }}", " -}}", " }}\n")
        if r < 0.45:
            return self.one("text ", "\n", " \n ", "{# c #}", "{#- c -#}\n", "{ } % ", "a\n  ", "{% raw %}{{ x }}{% endraw %}")
        if r < 0.55:
            return self.tag("if " + self.expression(2)) + self.body(d) + self.one("", self.tag("else") + self.body(d), self.tag("elif " + self.expression(2)) + self.body(d)) + self.tag("endif")
        if r < 0.72:
            target = self.one("i", "i", "i", "k, v", "v, (k, i)", "n")
            items = self.one(self.list(1), self.list(1), "dn|items", "d.items()", self.expression(2), "range(%s)" % self.r.randint(0, 4))
            old, self.names = self.names, self.names + ["i", "v", "k", "loop.index", "loop.last", "loop.first", "loop.length", "loop.revindex0", "loop.previtem", "loop.nextitem", "loop.depth",
                                                        "loop.cycle('o', 'e')", "loop.changed(i)"] * 3
            body = self.body(d) + self.one("", "", self.tag("if " + self.expression(2)) + self.tag(self.one("break", "continue")) + self.tag("endif"))
            recursive = self.r.random() < 0.15
            if recursive:
                body += "{{ loop.depth }}{% if i is iterable and i is not string and loop.depth < 4 %}[{{ loop(i) }}]{% endif %}"
            self.names = old
            return (self.tag("for %s in %s%s%s" % (target, items, self.one("", "", " if " + self.expression(2)), " recursive" if recursive else "")) + body
                    + self.one("", self.tag("else") + self.body(d)) + self.tag("endfor"))
        if r < 0.8:
            self.names.extend(["v", "u"])
            return self.one(self.tag("set %s = %s" % (self.target(), self.expression(1))), self.tag("set v, u = %s, %s" % (self.any(1), self.any(1))),
                            self.tag("set v" + self.one("", "|upper", "|trim|length")) + self.body(d) + self.tag("endset"))
        if r < 0.85:
            self.names.extend(["ns.a", "ns.b", "ns['a']"])
            return self.tag("set ns = namespace(a=%s)" % self.any(1)) + self.body(d) + self.tag("set ns.b = %s" % self.expression(1))
        if r < 0.93:
            parameters = self.one("a", "a, b=2", "a, b=a", "", "a='x', b=n")
            old, self.names = self.names, self.names + ["a", "b", "varargs", "kwargs", "caller"]
            body = self.body(d) + self.one("", "{{ varargs }}", "{{ kwargs }}", "{{ caller() }}", "{{ caller(1) }}", "{{ a }}-{{ b }}")
            self.names = old
            name = self.one("mac", "mac", "mic")
            call = self.one("%s(%s)", "%s(1, %s)", "%s(*[1, %s])", "%s(**{'a': %s})", "%s(b=%s)", "%s(a=1, *ls, **{'zz': %s})", "%s(1, 2, 3, %s)") % (name, self.any(2))
            return (self.tag("macro %s(%s)" % (name, parameters)) + body + self.tag("endmacro")
                    + self.one("{{ " + call + " }}", "{{ " + call + " }}", self.tag("call%s %s" % (self.one("", "(p)", "(p=1)"), call)) + "C{{ p }}" + self.body(d) + self.tag("endcall"),
                               "{{ %s.name }}{{ %s.arguments }}{{ %s }}" % (name, name, name)))
        if r < 0.96:
            return self.tag("filter " + self.one("upper", "trim", "indent(2)", "replace('a', 'b')|title")) + self.body(d) + self.tag("endfilter")
        return self.one(self.tag("with v = %s, u = n" % self.expression(1)) + self.body(d) + self.tag("endwith"), self.tag("generation") + self.body(d) + self.tag("endgeneration"),
                        "{% set c = cycler(1, 'b') %}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.next() }}{% set j = joiner('|') %}{{ j() }}{{ j() }}",
                        self.tag("block b%d" % self.r.randint(0, 9999)) + self.body(d) + self.tag("endblock"), "{% print n, s %}")

    def template(self):
        if self.r.random() < 0.6:
            return "{{ " + self.expression() + " }}"
        return self.body(0)


def main(seed, count):
    warnings.simplefilter("ignore")
    for i in range(count):
        writer = Writer("%s/%s" % (seed, i))
        template = writer.template()
        case = {"template": template, "variables": CONTEXT, "expected": None}
        try:
            case["expected"] = ENV.from_string(template).render(**json.loads(json.dumps(CONTEXT)))
        except Exception as error:
            case["error"] = "%s: %s" % (type(error).__name__, error)
        text = case["expected"] or ""
        # An address differs from run to run, and so does the order of a set.
        if " at 0x" in text or len(text) > 20000 or "{'b', 'a'}" in text or any("\ud800" <= c <= "\udfff" for c in text):
            continue
        print(json.dumps(case))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
